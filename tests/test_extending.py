"""The pieces of docs/extending.md, as a package in a directory of its own that Etude knows nothing of."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIECE = re.compile(r"```\w+\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def outside(tmp_path):
    """Runs Python where the package is installed, as pip would have it: its modules, and what its metadata names."""
    pieces = dict(PIECE.findall((ROOT / "docs/extending.md").read_text()))
    assert all(len(text.splitlines()) <= 40 for text in pieces.values())
    for name, text in pieces.items():
        (tmp_path / name).write_text(text)
    points = tomllib.loads(pieces["pyproject.toml"])["project"]["entry-points"]
    metadata = tmp_path / "outside-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    groups = [
        [f"[{group}]", *(f"{name} = {place}" for name, place in found.items())] for group, found in points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(line for group in groups for line in group))

    def run(*command):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


ONE = """
import asyncio
from pathlib import Path
from etude.config import load_recipe
from etude.environments.backends import Sandboxed, open_backend
from etude.environments.base import SandboxSpec

async def main():
    backend = open_backend(load_recipe(Path("recipe.toml"), Sandboxed).environment)
    try:
        box = await backend.create(SandboxSpec())
        print((await box.exec("echo there")).output.decode())
        print(type(backend).__name__, backend.times)
    finally:
        await backend.close()

asyncio.run(main())
"""


def test_a_backend_of_somebody_elses_is_opened_by_its_name(outside):
    said = outside("-c", ONE)
    assert "there" in said and "RoomyBackend 3" in said
    looked = outside("-m", "etude.cli.main", "environments", "doctor", "--backend", "roomy", "--set", "times=5")
    assert "5 times as much is there" in looked


TOOL = """
import asyncio
from count_lines import COUNT_LINES
from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec
from etude.harness.schema import ToolCall
from etude.harness.tools import ToolConfig, run_calls

async def main():
    backend = open_backend()
    try:
        box = await backend.create(SandboxSpec(files={"a.txt": b"one\\ntwo\\n"}))
        calls = [ToolCall("count_lines", {"path": path}, "") for path in ("a.txt", "b.txt")]
        said = []
        tools = {"count_lines": COUNT_LINES}
        await run_calls(calls, tools, box, ToolConfig(), lambda index, result: said.append((index, result.text)))
        print(sorted(said))
    finally:
        await backend.close()

asyncio.run(main())
"""


def test_a_tool_of_somebody_elses_answers_the_model(outside):
    assert "[(0, '2'), (1, 'error: there is no /workspace/b.txt')]" in outside("-c", TOOL)


MASK = """
import torch
from far import far
from etude.trainer.config import LossConfig
from etude.trainer.losses import MASKS, Sampled, policy_loss

MASKS["far"] = far
config = LossConfig(mask="off").model_copy(update={"mask": "far"})
logps = torch.tensor([-2.0, -2.0, -2.0], requires_grad=True)
ones, segment = torch.ones(3), torch.zeros(3, dtype=torch.long)
terms = policy_loss(logps, torch.zeros(3), Sampled(torch.tensor([-2.5, -3.5, -0.5]), ones, ones, segment), config)
terms.loss.backward()
print(terms.sums["masked"], (logps.grad != 0).tolist())
"""


def test_a_mask_of_somebody_elses_decides_what_is_trained_on(outside):
    assert "2.0 [True, False, False]" in outside("-c", MASK)

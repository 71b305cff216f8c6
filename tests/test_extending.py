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


def test_an_installation_older_than_its_code_says_so():
    """As an editable one is, when entry points came with a pull: its metadata know no backend."""
    script = "import importlib.metadata as m; m.entry_points = lambda **group: (); import etude.environments.backends"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "run `pip install -e .` again" in done.stderr.splitlines()[-1]

"""From a repository to a comparison in three commands, in a directory that is no clone of Etude's."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from users_git import git

sys.path.insert(0, str(Path(__file__).parents[1] / "rewards"))
from offline_wheels import PYTEST, pack

from etude.bench.config import BenchConfig
from etude.bench.run import run_bench
from etude.config import load_recipe
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError
from etude.records import InfraFailed, Limits, Task, Verifier
from etude.rewards.verifier import verify
from etude.tasks.harbor import read_task, write_task
from etude.tasks.mined.environment import PLACE

CART = "def total(prices, discount=0):\n    return sum(prices) - discount\n"
MENDED = "def total(prices, discount=0):\n    return max(0, sum(prices) - discount)\n"
TESTS = "from shop.cart import total\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
MORE = TESTS + "\n\ndef test_the_total_is_never_negative():\n    assert total([1], discount=5) == 0\n"


def etude(*arguments, cwd, **variables):
    command = [sys.executable, "-m", "etude.cli.main", *map(str, arguments)]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def away(tmp_path_factory):
    """A directory with nothing of ours in it, and what its commands are told: no network, their own cache."""
    root = tmp_path_factory.mktemp("away")
    root.chmod(0o755)
    (root / "wheels").mkdir()
    pack(root / "wheels", PYTEST)
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels"), "XDG_CACHE_HOME": str(root / "cache")}
    (root / "work").mkdir()
    return root / "work", found


@pytest.fixture(scope="module")
def mined(away, tmp_path_factory):
    """The directory of tasks of a repository, which is named by its URL."""
    work, variables = away
    repository = tmp_path_factory.mktemp("origin") / "shop"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    story = [
        ("A shop", {"shop/__init__.py": "", "shop/cart.py": CART, "tests/test_cart.py": TESTS}),
        ("Totals must not fall below zero\n\nA discount may be larger than the price.",
         {"shop/cart.py": MENDED, "tests/test_cart.py": MORE}),
    ]  # fmt: skip
    for message, files in story:
        for path, text in files.items():
            (repository / path).parent.mkdir(exist_ok=True)
            (repository / path).write_text(text)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", message)
    done = etude("tasks", "mine", f"file://{repository}", "--out", "tasks", "--json", cwd=work, **variables)
    assert done.returncode == 0, done.stderr
    [task] = [path for path in (work / "tasks").iterdir() if path.is_dir()]
    assert task.name.startswith("mined-shop")
    return task


def test_mine_run_compare(away, mined, tmp_path):
    """The second run is on a machine that has not mined them: what a task needs is installed there."""
    work, variables = away
    tmp_path.chmod(0o755)
    elsewhere = {**variables, "XDG_CACHE_HOME": str(tmp_path / "other")}
    for out, skill, where in (("weak", 0, variables), ("strong", 1, elsewhere)):
        done = etude("bench", "run", "tasks", "--solution", skill, "--out", out, "--json", cwd=work, **where)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["judged"], summary["solved"]) == (1, skill), done.stderr
        installed = "installing what a task needs" in done.stderr and "pytest==" in done.stderr
        assert installed == (where is elsewhere)
    compared = etude("bench", "compare", "weak", "strong", cwd=work, **variables)
    assert compared.returncode == 0 and "strong 100.0% solved" in compared.stdout, compared.stderr
    assert "That may be luck" in compared.stdout
    told = json.loads(etude("bench", "compare", "weak", "strong", "--json", cwd=work, **variables).stdout)
    assert told["verdict"] == "may be luck" and told["said"] in compared.stdout


def test_what_a_task_needs_and_cannot_be_installed_is_named(away, mined, tmp_path):
    work, variables = away
    empty = {**variables, "XDG_CACHE_HOME": str(tmp_path / "third"), "PIP_FIND_LINKS": str(tmp_path)}
    done = etude("bench", "run", "tasks", "--solution", 1, "--out", "never", cwd=work, **empty)
    assert done.returncode == 42 and f"{mined.name} needs " in done.stderr and "cannot be installed" in done.stderr


def test_a_sandbox_without_the_environment_is_no_verdict(mined, tmp_path):
    task, empty = read_task(mined), tmp_path / "empty"
    empty.mkdir()

    async def scenario():
        backend = NamespaceBackend(NamespaceConfig(binds={PLACE: empty}))
        try:
            return await verify(task, {**task.files, **task.solution}, backend)
        finally:
            await backend.close()

    found = asyncio.run(scenario())
    assert isinstance(found, InfraFailed) and PLACE in found.what and "binds" in found.what


LONG = "value = 1\n" * 6000


def test_a_solution_is_not_cut_by_limits_of_tokens(tmp_path):
    """Thirty files, the longest of 60 kB, of a task whose limits are a small model's."""
    solution = {f"part{number}.py": b"x = 1\n" for number in range(29)} | {"long.py": LONG.encode()}
    check = "import os, sys\nfiles = [f for f in os.listdir('/workspace') if f.endswith('.py')]\n"
    check += f"whole = len(files) == 30 and len(open('/workspace/long.py').read()) == {len(LONG)}\n"
    check += "os.makedirs('/logs/verifier', exist_ok=True)\n"
    check += "open('/logs/verifier/reward.txt', 'w').write(str(int(whole)))\n"
    verifier = Verifier({"/tests/check.py": check.encode()}, "python3 /tests/check.py")
    task = Task("long", "Write it.", {"README": b""}, verifier, solution=solution)
    task = replace(task, limits=Limits(max_turns=4, max_context_tokens=1024, max_sampled_tokens=512))
    write_task(task, tmp_path / "tasks" / "long")
    keys = {"tasks": {"directories": [tmp_path / "tasks"]}, "policy": {"kind": "solution"}}
    run = asyncio.run(run_bench(BenchConfig.model_validate(keys), tmp_path / "run"))
    [attempt] = run.attempts
    assert attempt.solved and attempt.stop == "finished"


def test_a_solution_has_no_tokenizer():
    with pytest.raises(ConfigError, match="key tokenizer is gone: write nothing in its place"):
        load_recipe(None, BenchConfig, ['policy.kind="solution"', 'policy.tokenizer="x"'])

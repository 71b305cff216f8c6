"""Tasks generated from a small repository: every kind is sound, sees what it is about, and comes out the same again."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from offline_wheels import PYTEST, pack
from users_git import git

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError
from etude.rewards.mining.generate import generate
from etude.rewards.mining.making import GenerateConfig
from etude.rewards.verifier import verify
from etude.tasks.difficulty import level_of
from etude.tasks.harbor import read_task
from etude.tasks.mined.environment import PLACE, Environments

ROOT = Path(__file__).parents[2]
PRICES = '''"""Prices."""
import os

from typing import Optional

__all__ = [
    "total",
    "cheapest",
]


def total(prices: list[int], discount: int = 0) -> int:
    """What is to pay: never below zero."""
    return max(0, sum(prices) - discount)


def cheapest(prices: list[int]) -> int | None:
    """The lowest of the prices, or None where there are none.

    Prices that are negative are no prices, and are left out.
    """
    found = _real(prices)
    found.sort()
    if not found:
        return None
    return found[0]


def _real(prices: list[int]) -> list[int]:
    return [price for price in prices if price >= 0]


def label(price: int) -> str:
    return f"{price} cents"
'''
INIT = '"""A shop."""\nfrom shop.prices import cheapest, label, total\n'
TESTS = """
import shop


def test_total():
    assert shop.total([1, 2]) == 3
    assert shop.total([1], discount=2) == 0


def test_cheapest():
    assert shop.cheapest([3, 1, -1]) == 1
    assert shop.cheapest([]) is None


def test_label():
    assert shop.label(3) == "3 cents"
"""
pytestmark = pytest.mark.proof(4)  # all of them look at one run, which takes most of that
KINDS = ("bug", "deletion", "revert", "lint", "types")


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """({kind: task}, the directory, the wheels) of a run of every kind."""
    base = tmp_path_factory.mktemp("generating")
    shop, out = base / "shop", base / "out"
    (shop / "shop").mkdir(parents=True)
    (shop / "tests").mkdir()
    (shop / "shop" / "prices.py").write_text(PRICES.replace("max(0, sum(prices) - discount)", "sum(prices) - discount"))
    (shop / "shop" / "__init__.py").write_text(INIT)
    (shop / "tests" / "test_shop.py").write_text(TESTS)
    git(shop, "init", "-q")
    git(shop, "add", "-A")
    git(shop, "commit", "-q", "-m", "A shop")
    (shop / "shop" / "prices.py").write_text(PRICES)
    git(shop, "commit", "-q", "-a", "-m", "Totals must not fall below zero")
    (base / "wheels").mkdir()
    wheels = pack(base / "wheels", (*PYTEST, "ruff", "ty"))
    command = [
        sys.executable, "-m", "etude.cli.main", "tasks", "generate", str(shop), "--out", str(out), "--json",
        "--environments", str(base / "environments"), "--set", 'name="shop"', "--set", "tries=12",
        *(word for kind in KINDS for word in ("--kind", kind)),
    ]  # fmt: skip
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    tasks = [read_task(out / name) for name in said["kept"]]
    return {task.provenance["family"]: task for task in tasks}, base, said


def test_every_kind_makes_a_sound_task(generated):
    tasks, _, said = generated
    assert sorted(tasks) == sorted(KINDS) and len(said["kept"]) == len(KINDS), said
    for kind, task in tasks.items():
        assert task.solution and 1 <= level_of(task) <= 5, kind
        assert not any(path.startswith(".git/") for path in task.files)


def test_a_deleted_feature_goes_with_all_that_was_its_own(generated):
    task = generated[0]["deletion"]
    left = task.files["shop/prices.py"].decode()
    assert "def cheapest" not in left and "_real" not in left and '"cheapest"' not in left
    assert task.files["shop/__init__.py"].decode() == '"""A shop."""\nfrom shop.prices import label, total\n'
    assert left.replace("\n", "") in PRICES.replace("\n", "") or "def total" in left
    assert task.instruction.startswith(
        "Add the function `cheapest(prices: list[int]) -> int | None` to shop/prices.py,"
    )
    assert "negative are no prices" in task.instruction
    assert task.provenance["fail_to_pass"] == ["tests/test_shop.py::test_cheapest"]


def test_functions_that_tests_call_are_asked_what_no_test_asks(generated):
    """The deleted one is called as its instruction says; debts change no function that is called otherwise."""
    tasks, _, said = generated
    assert {tasks[kind].provenance["unseen"] > 0 for kind in ("bug", "deletion", "revert")} == {True}
    assert said["tests_alone"] == sum(not task.provenance["unseen"] for task in tasks.values())
    secret = ast.literal_eval(tasks["deletion"].verifier.files["/tests/secret"].decode())["unseen"]
    assert {call[:2] for key, call in secret["request"].items() if key != "environment"} == {
        ("shop.prices", "cheapest")
    }


def test_a_reverted_commit_is_asked_for_in_its_words(generated):
    task = generated[0]["revert"]
    assert task.instruction.startswith("Totals must not fall below zero.")
    assert b"max(0" not in task.files["shop/prices.py"] and b"max(0" in task.solution["shop/prices.py"]
    assert b"cheapest" in task.files["shop/prices.py"]


def test_debts_are_paid_and_not_silenced(generated):
    tasks, base, _ = generated
    lint, types = tasks["lint"], tasks["types"]
    path, right = "shop/prices.py", tasks["lint"].solution["shop/prices.py"]
    silenced = lint.files[path].replace(b'"""Prices."""\n', b'"""Prices."""\n# ruff: noqa\n')
    suppressed = b"".join(
        line + (b"  # ty: ignore\n" if b"def " in line or b"return" in line else b"\n")
        for line in types.files[path].splitlines()
    )
    settings = b"[tool.ty.rules]\nall = 'ignore'\n"
    tries = [
        (lint, "the solution", {}, lint.solution, 1.0),
        (lint, "comments that silence", {}, {path: silenced}, 0.0),
        (lint, "settings", {"ruff.toml": b"[lint]\nignore = ['ALL']\n"}, {}, 0.0),
        (lint, "what worked is gone", {}, {path: right.replace(b"def label", b"def tag")}, 0.0),
        (types, "comments that silence", {}, {path: suppressed}, 0.0),
        (types, "settings", {"ty.toml": b"[rules]\nall = 'ignore'\n", "pyproject.toml": settings}, {}, 0.0),
        (types, "types that go away", {}, {path: types.files[path].replace(b"found = ", b"found: object = ")}, 0.0),
    ]

    async def scenario():
        backend = NamespaceBackend(NamespaceConfig(binds={PLACE: base / "environments"}))
        try:
            for task, what, more, files, reward in tries:
                verdict = await verify(task, {**task.files, **more, **files}, backend)
                assert (what, verdict.reward) == (what, reward), verdict
        finally:
            await backend.close()

    asyncio.run(scenario())


def test_a_run_goes_on_and_asks_for_what_it_can_have(generated, capsys):
    _, base, said = generated
    before = (base / "out" / "journal.jsonl").read_bytes()
    environments = Environments(base / "environments")

    async def again(**changes):
        backend = NamespaceBackend(NamespaceConfig(binds={PLACE: environments.root}))
        try:
            config = GenerateConfig(kinds=("bug",), count=1, tries=12, name="shop", **changes)
            return await generate(base / "shop", base / "out", backend, environments, config)
        finally:
            await backend.close()

    assert list(asyncio.run(again()).kept) == said["kept"]
    assert (base / "out" / "journal.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match="another `seed`"):
        asyncio.run(again(seed=1))
    with pytest.raises(ConfigError, match="levels: 9"):
        asyncio.run(again(levels=(9,)))

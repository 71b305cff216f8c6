"""The scripted agent that measures whether search helps: its tasks, what it reads, and the line of figures."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from users_git import git

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from searching.seeker import Found, Policy, Seeker
from searching.seeking import Workspace, cache_at, figures_of, opened, sought
from searching.sets import Question, files_below, of_clone
from sessions import played

from etude.archive.writer import ArchiveWriter
from etude.trainer.embedder.config import EmbedderConfig
from etude.trainer.embedder.pairs import Apart
from etude.trainer.embedder.sessions import pairs_of_sessions

ROOT = Path(__file__).parents[2]

PRICES = """
def discount(price, share):
    return price * (1 - share)


def rounded(price):
    return int(price)
"""
CART = """
from shop.prices import discount


class Cart:
    def total(self, coupon):
        return sum(discount(price, coupon.share) for price in self.prices)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """One commit that mends `rounded`, one that changes prose alone."""
    root = tmp_path / "shop"
    (root / "shop").mkdir(parents=True)
    (root / "tests").mkdir()
    git(root, "init", "-q")
    for number in range(30):
        (root / "shop" / f"other{number}.py").write_text(f"def thing{number}(x):\n    return x + {number}\n")
    (root / "shop" / "prices.py").write_text(PRICES)
    (root / "shop" / "cart.py").write_text(CART)
    (root / "tests" / "test_prices.py").write_text("def test_nothing():\n    assert True\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "the shop")
    (root / "shop" / "prices.py").write_text(PRICES.replace("int(price)", "round(price, 2)"))
    (root / "tests" / "test_prices.py").write_text("def test_cents():\n    assert rounded(1.239) == 1.24\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Prices are rounded to whole numbers where customers pay cents")
    (root / "README.md").write_text("A shop.\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Say what this is about in words")
    return root


def test_a_clone_gives_tasks_by_the_miner_s_rules(clone: Path) -> None:
    [task] = of_clone(clone, "HEAD", 9)
    assert task.text == "Prices are rounded to whole numbers where customers pay cents."
    assert task.files == {"shop/prices.py"} and task.functions == (("shop/prices.py", 6, 7),)
    assert task.tree["shop/prices.py"].decode() == PRICES, "the tree before"


def test_both_ways_read_the_right_file_with_the_product_s_tools(clone: Path) -> None:
    found = asyncio.run(sought(of_clone(clone, "HEAD", 1), Policy(steps=8)))
    for way in ("with", "without"):
        assert found[way]["files_found"] == found[way]["functions_found"] == [1.0], way
        assert 0 < found[way]["tokens_to_first"][0] <= found[way]["tokens"][0] and found[way]["steps"][0] <= 8
    assert found["with"]["steps_to_first"][0] < found["without"]["steps_to_first"][0], "a row of a grep is not read"


TASK = "A coupon with a share of half should discount whole prices"


def test_both_ways_read_before_they_ask_again(clone: Path, tmp_path: Path) -> None:
    """No way has to spend calls that the other need not, but for the look at what its answer names."""

    async def asked(searches: bool) -> tuple[list[str], Found]:
        called = []

        async def ask(tool: str, arguments: dict[str, Any]) -> str:
            called.append(tool)
            return await here.ask(tool, arguments)

        found = await Seeker(ask, TASK, searches).seek()
        return called, found

    async def both() -> list[tuple[list[str], Found]]:
        nonlocal here
        with cache_at(tmp_path / "cache"):
            here = await opened(tmp_path, "shop")
            try:
                here.become(files_below(clone / "shop"))
                return [await asked(True), await asked(False)]
            finally:
                await here.sandbox.destroy()

    here: Workspace
    (with_it, read), (without, later) = asyncio.run(both())
    assert with_it[0] == "codebase_search" and "codebase_search" not in without
    assert without[:2] == ["grep", "read_file"] and "glob" in without[2:], "the rest comes when no place is left"
    assert read.read[0][0] == 1 and later.read[0][0] == 2, "what a search shows is read, a row of a grep is not"


def test_its_sessions_are_labels_of_an_embedder(clone: Path, tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "run") as writer:
        assert asyncio.run(played(clone, "HEAD", 9, writer, 0)) == (1, 1)
    corpus = {"directories": [tmp_path]}
    asked = {"kind": "embedder", "corpus": corpus, "sessions": {"directories": [tmp_path / "run"]}}
    config = EmbedderConfig.model_validate(asked)
    found = list(pairs_of_sessions(config, Apart.of(config)))
    assert found[0].defined.keys() == {"round"} and {"pric", "cent"} <= found[0].question.keys()
    assert any("discount" in pair.left_defined for pair in found), "it was opened, and the patch left it"


def test_only_what_was_read_is_found_and_what_was_spent_until_then_is_told() -> None:
    question = Question("r", {}, "t", frozenset({"a.py", "b.py"}), (("a.py", 10, 20), ("b.py", 1, 5)))
    found = Found(steps=5, tokens=900, read=[(1, 100, "x.py", 1, 40), (2, 300, "a.py", 21, 40), (3, 500, "a.py", 1, 9)])
    assert figures_of(question, found) == {
        "files_found": 0.5, "functions_found": 0.0, "tokens": 900, "steps": 5, "tokens_to_first": 300,
        "steps_to_first": 2,
    }  # fmt: skip
    found.read.append((5, 900, "b.py", 5, 9))
    assert figures_of(question, found)["files_found"] == 1 and figures_of(question, found)["functions_found"] == 0.5
    missed = figures_of(question, Found(steps=7, tokens=80))
    assert (missed["files_found"], missed["tokens_to_first"], missed["steps_to_first"]) == (0, 80, 7)


def test_the_benchmark_prints_every_key_of_one_part(clone: Path) -> None:
    script = str(ROOT / "benchmarks" / "search.py")
    command = [sys.executable, script, "--only", "agent", "--clone", f"{clone}@HEAD"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["agent_files_found_with"] == line["agent_files_found_without"] == 1.0 and line["agent_tasks"] == 1
    asked = ("locate_mrr", "locate_fn_hit10", "doc_r10", "doc_mrr", "pub_ndcg", "peers", "first_query_ms")
    asked += ("query_ms_p50", "second_worktree_embeds", "grep_mismatches", "grep_rare_ms", "grep_common_ms")
    assert {key: line[key] for key in (*asked, "tokens_ratio")} == dict.fromkeys((*asked, "tokens_ratio")) | {
        "peers": {}
    }

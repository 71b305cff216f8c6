"""Labels of an embedder that are no docstrings: what commits changed, what agents' sessions edited, opened and left."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedder_samples import LICENCE, config, package
from torch.nn import functional

from etude.archive.export import export
from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader
from etude.archive.records import FileChange, Kept, KeptTask, Said, Tokens
from etude.archive.writer import ArchiveWriter
from etude.errors import ConfigError
from etude.records import Event, EventKind, Scored
from etude.trainer.embedder.commits import pairs_of_commits
from etude.trainer.embedder.making import make_embedder, read_pairs
from etude.trainer.embedder.pairs import Apart, Pair
from etude.trainer.embedder.sessions import pairs_of_sessions
from etude.trainer.embedder.training import Bag, Example, _no_answers, loss_of, shared_words
from etude.trainer.embedder.training import Table as WordTable

SHOP = '''\
class Cart:
    def total(self, rate):
        summed = sum(self.prices)
        return summed * rate

    def clear(self):
        self.prices = []


def parse_price(text):
    """What a label says."""
    return float(text.strip("$"))
'''


def changed(old: str, new: str) -> str:
    assert old in SHOP
    return SHOP.replace(old, new)


TOTAL = changed("summed * rate", "round(summed * rate, 2)")


# --- commits ----------------------------------------------------------------------------------------------------------


def history(at: Path, *commits: tuple[str, dict[str, str]]) -> Path:
    """A repository under a licence, with these on top of the shop."""

    def git(*words: str) -> None:
        said = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *said, *words], cwd=at, check=True, timeout=120)

    at.mkdir()
    git("init", "-q")
    for message, files in (("Begin the shop", {"shop/cart.py": SHOP, "LICENSE": LICENCE}), *commits):
        for path, text in files.items():
            (at / path).parent.mkdir(parents=True, exist_ok=True)
            (at / path).write_text(text)
        git("add", "-A")
        git("commit", "-qm", message)
    return at


def of_commits(*directories: Path, **more: Any) -> list[Pair]:
    asked = config(directories[0].parent / "none", commits={"directories": directories}, **more)
    return list(pairs_of_commits(asked, Apart.of(asked)))


def test_a_message_goes_with_the_functions_that_its_commit_changed(tmp_path: Path) -> None:
    found = of_commits(
        history(
            tmp_path / "shop",
            ("Round what customers pay to whole cents\n\nAdds a test.\n\nFixes: #12", {"shop/cart.py": TOTAL}),
            ("Describe how prices are told apart", {"README.md": "Prices.", "tests/test_cart.py": "def test(): 1"}),
            ("typo", {"shop/cart.py": TOTAL.replace("label", "tag")}),
        )
    )
    [pair] = found
    assert pair.source == "commits" and pair.package == "shop" and not pair.left
    assert {"round", "custom", "cent"} <= pair.question.keys() and "test" not in pair.question
    assert pair.defined == Counter({"total": 1})
    assert "sum" in pair.words and "round" not in pair.words, "the function is as it was before"


def test_a_patch_that_looks_like_a_header_moves_no_line(tmp_path: Path) -> None:
    odd = f'{SHOP}\n\nTEXT = """\n-- a/other.py\n@@ -1 +1 @@\n"""\n\n\ndef last_of_all():\n    return 1\n'
    one, two = ("Say which texts are no headers", {"shop/cart.py": odd}), odd.replace("-- a/other", "-- b/other")
    told = ("Count the very last thing twice", {"shop/cart.py": two.replace("return 1", "return 2")})
    found = of_commits(history(tmp_path / "shop", one, told))
    assert [pair.defined["last"] for pair in found if "twic" in pair.question] == [1]


def test_commits_of_what_is_kept_out_or_under_no_licence_are_no_labels(tmp_path: Path) -> None:
    commit = ("Round what customers pay to whole cents", {"shop/cart.py": TOTAL})
    place = history(tmp_path / "shop", commit)
    assert len(of_commits(place)) == 1
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "copied.py").write_text(SHOP)
    assert of_commits(place, kept_out=[tmp_path / "sealed"]) == []
    assert of_commits(place, names_kept_out=["shop"]) == []
    bare = history(tmp_path / "closed", commit, ("Nobody may use what is here any more", {"LICENSE": "Mine alone."}))
    assert of_commits(bare) == []


# --- sessions ---------------------------------------------------------------------------------------------------------

CALLS = (
    ("codebase_search", {"query": "where is the sum of a cart rounded"}, "shop/cart.py:1-4"),
    ("read_file", {"path": "shop/cart.py"}, SHOP),
    (
        "read_file",
        {"path": "shop/money.py", "start": 11},
        "def to_cents(amount):\n    return int(amount * 100)\n\n\ndef sum_of(coins):\n    return sum(coins)\n\n\n"
        "[lines 11-18 of 90; start=19 goes on]",
    ),
)
INSTRUCTION = "Customers pay fractions: let the total have whole cents. Run make check."
AFTER = changed("summed * rate", "to_cents(summed * rate)")


def session(name: str = "g0/0", passed: float = 1.0, split: str = "train", calls: Sequence[Any] = CALLS) -> Kept:
    """One that read two files and edited one function."""
    events: list[tuple[EventKind, dict[str, Any]]] = []
    for at, (tool, given, text) in enumerate(calls):
        where = {"turn": at + 1, "index": 0, "name": tool}
        events += [
            ("tool_call", {**where, "arguments": given}),
            ("tool_result", {**where, "text": text, "error": False}),
        ]
    said = [Said(Event(kind, 0.0, data), None) for kind, data in events]
    task = KeptTask(f"t-{split}", INSTRUCTION, (), "", split, {"repository": "shop"})
    none = Tokens((), np.array([], np.int32), np.array([], np.bool_), np.array([], np.float32), np.array([], np.int32))
    return Kept(
        id=name, group_id=name.partition("/")[0], task=task, tokens=none, said=said,
        outcome=Scored(passed, {"tests": passed}), findings=(), usage={}, conduct={}, environment={}, seed=0,
        temperature=1.0, attempt=1, worker="here/1", begun_at=0.0, ended_at=1.0,
        files=[FileChange("shop/cart.py", SHOP.encode(), AFTER.encode())],
    )  # fmt: skip


def run(at: Path, *sessions: Kept) -> Path:
    with ArchiveWriter(at) as writer:
        for each in sessions:
            writer.keep(each)
    return at


def of_sessions(*places: Path, **more: Any) -> list[Pair]:
    asked = config(places[0].parent / "none", sessions={"directories": places}, **more)
    return list(pairs_of_sessions(asked, Apart.of(asked)))


def test_a_session_says_what_was_edited_used_and_left(tmp_path: Path) -> None:
    found = of_sessions(run(tmp_path / "run", session()))
    asked = {tuple(sorted(pair.question)) for pair in found}
    assert len(asked) == 2, "what was searched for, and the instruction with hindsight"
    searched, hindsight = ([pair for pair in found if (word in pair.question)] for word in ("sum", "fraction"))
    assert len(searched) + len(hindsight) == len(found)
    assert "check" not in hindsight[0].question, "how to run the tests is no question"
    for some in (searched, hindsight):
        assert some[0].defined.keys() == {"total"}, "what was edited comes first"
        assert "to_cents" in some[1].defined, "then what the patch calls"
        left = [pair.left_defined.keys() - {"cart"} for pair in some]
        assert {word for each in left for word in each} >= {"clear", "parse_price", "sum_of"}
        assert not any({"total", "to_cents"} & each for each in left)
    assert {pair.package for pair in found} == {"shop"} and {pair.source for pair in found} == {"sessions"}


def test_what_failed_or_was_an_evaluation_is_no_label(tmp_path: Path) -> None:
    others = session("g1/0", passed=0.0), session("development-3/0"), session("g2/0", split="eval")
    with pytest.raises(ConfigError, match=r"sessions\.directories: .*run has no session of training that passed"):
        of_sessions(run(tmp_path / "run", *others))
    one = of_sessions(run(tmp_path / "one", session()))
    assert of_sessions(run(tmp_path / "two", session(), session("g3/1"), *others)) == one, "attempts repeat each other"
    with pytest.raises(ConfigError, match="nowhere is not there"):
        of_sessions(tmp_path / "nowhere")


def test_exported_trajectories_are_the_same_labels(tmp_path: Path) -> None:
    place, out = run(tmp_path / "run", session(), session("g1/0", passed=0.0)), tmp_path / "run.jsonl"
    with ArchiveReader(place) as reader:
        export(reader, Filter(), "jsonl", out)
    assert of_sessions(out) == of_sessions(place)
    out.write_text('{"solved": true}\n')
    with pytest.raises(ConfigError, match=r"run\.jsonl: line 1 is not of `etude runs export"):
        of_sessions(out)


def test_sessions_teach_nothing_of_what_is_kept_out(tmp_path: Path) -> None:
    place = run(tmp_path / "run", session())
    assert of_sessions(place, names_kept_out=["shop"]) == []
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "copied.py").write_text("def sum_of(coins):\n    return sum(coins)\n")
    found = of_sessions(place, kept_out=[tmp_path / "sealed"])
    assert found and not any("sum_of" in pair.left_defined for pair in found)


# --- what is learned from them ----------------------------------------------------------------------------------------


def bag(*rows: int) -> Bag:
    return Bag(np.array(rows, np.int32), np.ones(len(rows), np.int32))


def example(question: Bag, right: Bag, left: Bag | None = None, weight: float = 1.0) -> Example:
    left = left or bag()
    return Example(("one", "sessions"), question, right, right, left, left, weight)


def test_what_was_left_is_a_wrong_answer() -> None:
    torch.manual_seed(0)
    table = WordTable(np.ones(12, np.float32), 8)
    batch = [example(bag(0), bag(3, 4), bag(0, 5), weight=3.0), example(bag(1), bag(6))]
    pieces = [bag(3, 4), bag(6), bag(0, 5)]
    near = table.questions([bag(0), bag(1)]) @ table.pieces(pieces, pieces).T
    scores = near / 0.1 + table.shared * shared_words([bag(0), bag(1)], pieces)
    assert scores.shape == (2, 3) and shared_words([bag(0)], pieces)[0, 2] > 0, "it shares a word with its question"
    rows = functional.cross_entropy(scores, torch.arange(2), reduction="none")
    back = functional.cross_entropy(scores[:, :2].T, torch.arange(2), reduction="none")
    expected = (3 * (rows[0] + back[0]) + rows[1] + back[1]) / 8
    assert torch.allclose(loss_of(table, batch, 0.1), expected)

    loss_of(table, batch, 0.1).backward()
    assert table.vectors.grad is not None
    with torch.no_grad():
        table.vectors -= 0.05 * table.vectors.grad
        after = table.questions([bag(0)]) @ table.pieces(pieces[2:], pieces[2:]).T
    assert after[0, 0] < near[0, 2], "a step moves it away from the question it was opened for"


def test_what_was_left_and_was_right_another_time_is_no_wrong_answer() -> None:
    two = [example(bag(0), bag(3)), example(bag(0), bag(4)), example(bag(1), bag(5))]
    opened = [example(bag(0), bag(3), bag(4)), *two[1:]]
    scores = [_no_answers(batch, [each for each in batch if len(each.left.rows)]).tolist() for batch in (two, opened)]
    assert scores[0] == [[False, True, False], [True, False, False], [False, False, False]]
    assert [row[3] for row in scores[1]] == [True, True, False]


def test_a_recipe_names_commits_and_runs(tmp_path: Path) -> None:
    commits = history(tmp_path / "shop", ("Round what customers pay to whole cents", {"shop/cart.py": TOTAL}))
    directories = package(tmp_path, "one", 80), package(tmp_path, "two", 80)
    more = {"commits": {"directories": [commits]}, "sessions": {"directories": [run(tmp_path / "run", session())]}}
    asked = config(*directories, epochs=1, **more)
    made = make_embedder(asked, tmp_path / "out")
    assert made["commits"] == 1 and made["sessions"] == 8 and made["pairs"] == 169
    again = read_pairs(tmp_path / "out" / "pairs.npz")
    assert again[160:] == [*pairs_of_commits(asked, Apart.of(asked)), *pairs_of_sessions(asked, Apart.of(asked))]
    report = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert report["commits"] == {"shop": 1} and report["sessions"] == {"shop": 8}
    heavy = config(*directories, epochs=1, **{**more, "sessions": {**more["sessions"], "weight": 50.0}})
    assert make_embedder(heavy, tmp_path / "heavy")["identity"] != made["identity"], "a weight changes what is learned"
    none = config(*directories, commits={"directories": [history(tmp_path / "empty")]})
    with pytest.raises(ConfigError, match="nothing to learn from was found there"):
        make_embedder(none, tmp_path / "none")

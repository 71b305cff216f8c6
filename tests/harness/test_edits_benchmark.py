"""The replay of edits reads a history, makes mistakes whose right outcome is known, and judges by the bytes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from edit_replay.histories import History, Hunk
from edit_replay.mistakes import MISTAKES, Case, Source
from edits import judge

ROOT = Path(__file__).parents[2]


def version(number: int) -> str:
    """A file in which every commit changes one function, and the comment above the next."""
    parts = []
    for index in range(24):
        rounds = (number + 23 - index) // 24
        body = f"    if {index}:\n        return {rounds}\n    done()\n"
        parts.append(f"# comment {(number + 22 - index) // 24}\ndef f{index}(x):\n{body}\n")
    return "".join(parts)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True, env=environment)

    git("init", "-q")
    for number in range(30):
        (tmp_path / "a.py").write_text(version(number))
        git("add", "-A")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", str(number))
    return tmp_path / ".git"


def test_a_history_is_read_as_hunks(repository: Path) -> None:
    with History(repository, 100) as history:
        changes = list(history.changes())
        assert len(changes) == 29 and changes[0].before is None and changes[5].before == changes[4]
        for change in changes:
            before, after = history.lines(change.old), history.lines(change.new)
            assert before is not None and after is not None
            for hunk in reversed(change.hunks):
                before[hunk.start : hunk.end] = after[hunk.new_start : hunk.new_end]
            assert before == after


def test_every_kind_of_mistake_can_be_made_and_the_benchmark_says_how_it_went(repository: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "edits.py"), "--repository", str(repository), "--edits", "60"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert 10 < figures["edits"] <= 60 and figures["wrong_place"] == 0
    assert figures["failure_rate"] < figures["baseline_failure_rate"] <= 1
    assert "indentation" in done.stdout and "as it is" in done.stdout


def test_outcomes_are_judged_by_bytes() -> None:
    case = Case("a\nb\nc\n", "b", "x", "a\nx\nc\n", "a\n", "c\n", 2)
    assert judge(case, "a\nx\nc\n", "") == "right"
    assert judge(case, None, "no") == "refused"
    assert judge(case, "a\ny\nc\n", "") == "wrong text"
    assert judge(case, "x\nb\nc\n", "") == "wrong place"
    double = Case("b\nb\n", "b", "x", None, "", "", 2)
    assert (
        judge(double, None, "2 places:\nline 1, at the top\nline 2, after: b") == judge(double, None, None) == "right"
    )
    assert judge(double, None, "2 places:\nline 1, after: 2\nand at lines 12, 22") == "unnamed"
    assert judge(double, "b\nx\n", "") == "wrong place"


def test_a_mistake_changes_what_is_sent_and_not_what_is_meant() -> None:
    before = ["def f(x):", "    y = x", "    return y", "", "def g(x):", "\treturn x", "\tpass"]
    source = Source(before, [*before[:1], "    z = x", *before[2:]], Hunk(1, 2, 1, 2), None, ())
    for kind in ("as it is", "whitespace", "indentation", "made before"):
        for maker in MISTAKES[kind][1]:
            case = maker(source, random.Random(1))
            if case is not None and case.meant is not None:
                assert case.meant.replace("\r", "").replace("  \n", "\n") == "\n".join(source.meant) + "\n"
                assert maker.__name__ == "line_endings" or (case.old in case.file) is (kind == "as it is")

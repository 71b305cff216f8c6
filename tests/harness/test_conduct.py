"""How a session worked, counted from the log of real ones: played by a script in a real sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.harness.conduct import Conduct, conduct_of, habits
from etude.harness.config import HarnessConfig
from etude.harness.prompt import render_calls
from etude.harness.scripted import ScriptedDialogue
from etude.harness.session import run_dialogue
from etude.records import Limits

Call = tuple[str, Mapping[str, str]]
AGENT = HarnessConfig(toolset="agent")
LIMITS = Limits(max_turns=40, max_context_tokens=1000, max_sampled_tokens=1000)
FILES = {"calc.py": b"def add(a, b):\n    return a - b\n", "other.py": b"ONE = 1\n"}
MEND: Call = ("edit_file", {"path": "calc.py", "old": "a - b", "new": "a + b"})
BROKEN: Call = ("write_file", {"path": "new.py", "content": "def f(:\n"})
LOOK: Call = ("read_lints", {})
SOUND: Call = ("write_file", {"path": "new.py", "content": "def f():\n    pass\n"})
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
WRITE_TEST: Call = ("write_file", {"path": "tests/test_calc.py", "content": TEST})


def read(path: str) -> Call:
    return "read_file", {"path": path}


def run(command: str) -> Call:
    return "run_terminal_cmd", {"command": command}


@pytest.fixture
def recorded(in_sandbox: Callable[..., Any]) -> Callable[..., Conduct]:
    """Plays calls, a turn each or several together, and last words; counts what the log says of it."""

    def play(*turns: Call | Sequence[Call], said: str = "Done.") -> Conduct:
        messages = [render_calls([each] if isinstance(each[0], str) else each) for each in turns]  # type: ignore
        left = iter([*messages, said])

        async def scenario(sandbox: Sandbox) -> Conduct:
            dialogue = ScriptedDialogue(lambda _: next(left), AGENT.chosen())
            played = await run_dialogue(
                "Mend add.", sandbox, dialogue, AGENT, LIMITS, session_id="s", about={}, files=FILES
            )
            assert played.stop == "finished"
            return conduct_of(played.events)

        return in_sandbox(scenario, FILES)

    return play


def test_edits_of_what_was_read_and_of_what_was_not(recorded: Callable[..., Conduct]) -> None:
    other = ("edit_file", {"path": "other.py", "old": "ONE = 1", "new": "ONE = 2"})
    again = ("edit_file", {"path": "other.py", "old": "ONE = 2", "new": "ONE = 3"})
    failing = ("edit_file", {"path": "other.py", "old": "not there", "new": "x"})
    found = recorded(read("/workspace/calc.py"), MEND, failing, other, again)
    assert (found.edits, found.edits_unread) == (3, 1), "its own edit shows a session what it edits"
    assert found.calls == 5 and found.looked == 1 and found.edited
    assert recorded(run("cat calc.py"), MEND).edits_unread == 0
    assert recorded(MEND, read("calc.py")).edits_unread == 1, "to read it afterwards is too late"
    assert recorded(read("missing.py"), ("write_file", {"path": "missing.py", "content": ""})).edits == 0


def test_tests_that_were_written_and_run(recorded: Callable[..., Conduct]) -> None:
    check = run("python3 -m unittest tests/test_calc.py; true")
    found = recorded(WRITE_TEST, check, MEND, run("ls tests"))
    assert (found.tests_written, found.tests_run, found.own_tests_run) == (1, 1, True)
    found = recorded(check, WRITE_TEST, run("echo pytest-cov is not run"))
    assert (found.tests_written, found.tests_run, found.own_tests_run) == (1, 1, False)
    for command in (
        "pytest -q",
        "cd x && go test ./...",
        "npm run test",
        "python3 tests/test_calc.py",
        "./check.py",
        "CI=1 .venv/bin/pytest",
    ):
        assert recorded(run(f"{command} || true")).tests_run == 1, command
    for command in ("cat tests/test_calc.py", "git status", "grep -r pytest .", "ls contest.py"):
        assert recorded(run(f"{command} || true")).tests_run == 0, command


def test_lints_that_were_told_and_are_gone(recorded: Callable[..., Conduct]) -> None:
    found = recorded(BROKEN, LOOK, SOUND, LOOK)
    assert (found.lint_checks, found.lints_told, found.lints_fixed) == (2, 1, 1)
    found = recorded(BROKEN, LOOK, SOUND)
    assert (found.lints_told, found.lints_fixed) == (1, 0), "nobody looked again"
    found = recorded(
        BROKEN, LOOK, SOUND, ("read_lints", {"path": "calc.py"}), run("command -v ruff; ruff check . || true")
    )
    assert (found.lint_checks, found.lints_told, found.lints_fixed) == (3, 1, 0), "it looked elsewhere"


def test_claims_that_nothing_bears_out(recorded: Callable[..., Conduct]) -> None:
    claim = "I mended add. All tests pass now."
    assert recorded(MEND, said=claim).unchecked_claims == 1
    assert recorded(MEND, run("python3 -c 'import calc'"), said=claim).unchecked_claims == 0
    assert recorded(run("true"), MEND, said=claim).unchecked_claims == 1, "an edit came after it"
    assert recorded(MEND, said="I mended add. I could not run the tests.").unchecked_claims == 0


def test_what_several_have_in_common_and_what_none_had_an_occasion_for() -> None:
    none = habits([Conduct(), Conduct()])
    assert none["edits_read_first"] is none["own_tests_run"] is none["lints_fixed"] is None
    assert none["tests_run"] == none["unchecked_claims"] == 0 and set(habits([]).values()) == {None}
    busy = Conduct(edits=4, edits_unread=1, tests_written=2, tests_run=3, lints_told=4, lints_fixed=1, lint_checks=2)
    found = habits([busy, replace(busy, own_tests_run=True, unchecked_claims=1), Conduct(), Conduct()])
    assert found == {
        "edits_read_first": 0.75, "tests_written": 1.0, "tests_run": 1.5, "own_tests_run": 0.5, "lint_checks": 1.0,
        "lints_fixed": 0.25, "unchecked_claims": 0.25,
    }  # fmt: skip

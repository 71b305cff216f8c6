"""`etude agent --best-of` and `--fleet`: real agents in real worktrees and sandboxes, one scripted model for all."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted_openai import Reply, ScriptedServer
from users_git import git

from etude.cli.main import main
from etude.config import load_recipe
from etude.errors import ConfigError
from etude.harness.store import SessionStore
from etude.plain import short_line
from etude.product.config import AgentConfig
from etude.product.fleet.board import Board, Status, clock, drawn, short
from etude.product.fleet.face import best_of, tasks_in
from etude.product.fleet.play import Asked, play

TESTS = "grep -q 'x = 2' a.py"
Json = dict[str, Any]


class Setting:
    """A repository with a dirty tree, a home for sessions, and `etude agent` in both."""

    def __init__(self, root: Path) -> None:
        self.project, self.home = root / "project", root / "home"
        self.trees = root / "trees"
        self.project.mkdir()
        (self.project / "a.py").write_text("x = 1\n")
        (self.project / "b.py").write_text("b\n")
        git(self.project, "init", "-q")
        git(self.project, "add", "-A")
        git(self.project, "commit", "-qm", "first")
        (self.project / "b.py").write_text("b, not committed\n")
        git(self.project, "stash")
        (self.project / "b.py").write_text("b, staged\n")
        git(self.project, "add", "b.py")

    def arguments(self, server: ScriptedServer, *more: str) -> list[str]:
        where = ["--dir", str(self.project), "--set", f'fleet.directory="{self.trees}"']
        return ["agent", "--endpoint", server.url, "--model", "m", *where, *more]

    def users(self) -> tuple[str, ...]:
        """What no command may touch."""
        words = (["diff", "--cached"], ["rev-parse", "HEAD"], ["stash", "list"], ["branch", "-v"])
        return tuple(git(self.project, *each) for each in words)

    def left(self) -> list[str]:
        """Worktrees, and whatever else lies where they were."""
        listed = git(self.project, "worktree", "list").splitlines()[1:]
        return [*listed, *(str(path) for path in self.trees.glob("*/*"))]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, outer: Path) -> Setting:
    monkeypatch.setenv("ETUDE_HOME", str(outer / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(outer / "config"))
    return Setting(outer)


def write(path: str, text: str) -> Reply:
    return Reply("", [("write_file", {"path": path, "content": text})])


def answers(*texts: str) -> Callable[[Json], Reply]:
    """Each agent, in the order they ask, writes one of the texts to a.py, and is done."""
    numbers = itertools.count()

    def script(body: Json) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return write("a.py", texts[next(numbers)])
        return Reply("Done.", prompt_tokens=1000)

    return script


def told(capsys: pytest.CaptureFixture[str]) -> Json:
    return json.loads(capsys.readouterr().out)


def test_the_best_of_several_is_ranked_kept_and_brought(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    before = here.users()
    script = answers("x = 2\n" * 5, "x = 3\n", "x = 2\n")
    with ScriptedServer(script) as server:
        more = [
            "--set",
            "prices.m={input=1.0, output=1.0}",
            "--tests",
            TESTS,
            "--lints",
            "grep -n x a.py | sed s/^/a.py:/",
        ]
        assert main(here.arguments(server, "Make x two.", "--best-of", "3", "--json", *more)) == 0
    run = told(capsys)
    assert [each["tests_pass"] for each in run["agents"]] == [True, True, False]
    assert [each["added"] for each in run["agents"]] == [1, 5, 1] and run["agents"][0]["new_lints"] == 1
    assert run["best"] == run["agents"][0]["agent"] and run["conflicts"] == [] and run["applied"] == {}
    best = run["agents"][0]
    assert best["stop"] == "finished" and best["turns"] == 2 and best["task"] == "Make x two."
    assert best["usage"] == {"prompt_tokens": 1100, "cached_tokens": 0, "completion_tokens": 20}
    assert best["cost"] == pytest.approx(0.00112)
    assert git(here.project, "show", f"{best['commit']}:a.py") == "x = 2\n"
    assert git(here.project, "show", f"{best['commit']}:b.py") == "b, staged\n", "the dirty tree was taken along"
    assert (here.project / "a.py").read_text() == "x = 1\n" and here.users() == before and here.left() == []
    assert len(SessionStore(here.home).sessions()) == 3 and not (here.home / "snapshots").exists()

    wrong = run["agents"][2]["agent"].removeprefix("agent-")
    assert main(["agent", "--results", "--dir", str(here.project)]) == 0
    shown = capsys.readouterr().out
    assert "the best" in shown and "pass" in shown and "fail" in shown and "$0.00" in shown
    assert main(["agent", "--apply", "best", "--json", "--dir", str(here.project)]) == 0
    assert told(capsys)["applied"] == {best["agent"]: ["a.py"]}
    assert (here.project / "a.py").read_text() == "x = 2\n" and here.users() == before
    assert main(["agent", "--apply", wrong, "--dir", str(here.project)]) == 42, "it changes the same line"
    assert "conflicts with your changes to a.py" in capsys.readouterr().err
    assert main(["agent", "--results", "none", "--dir", str(here.project)]) == 42
    assert "there is no run none" in capsys.readouterr().err


def test_files_that_are_too_large_are_named(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the user's at once, and with the run; of an agent's with its result."""
    for name in ("big.bin", "odd\x1b[31m.bin"):
        with (here.project / name).open("wb") as file:
            file.truncate(60_000_000)

    def script(body: Json) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return Reply("", [("run_terminal_cmd", {"command": "truncate -s 60M made.bin; echo 'x = 2' > a.py"})])
        return Reply("Done.")

    with ScriptedServer(script) as server:
        assert main(here.arguments(server, "Go.", "--best-of", "1", "--json", "--allow", "run")) == 0
    ended = capsys.readouterr()
    assert "not taken along: files over 50 MB: big.bin, odd" in ended.err and "\x1b" not in ended.err
    run = json.loads(ended.out)
    assert run["too_large"] == ["big.bin", "odd\x1b[31m.bin"] and run["agents"][0]["too_large"] == ["made.bin"]
    assert main(["agent", "--results", "--dir", str(here.project)]) == 0
    assert "not in the result of agent-1: files over 50 MB: made.bin" in " ".join(capsys.readouterr().out.split())
    assert main(["agent", "--results", "--json", "--dir", str(here.project)]) == 0
    assert told(capsys)["too_large"] == run["too_large"]


def test_nothing_good_enough_is_no_best(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """One is wrong, one's endpoint refuses: both are told of, the command fails, and nothing is brought."""
    numbers = itertools.count()

    def script(body: Json) -> Reply:
        if body["messages"][-1]["role"] == "user" and next(numbers):
            return Reply(status=401, body={"error": {"message": "no key"}})
        return write("a.py", "x = 5\n") if body["messages"][-1]["role"] == "user" else Reply("Done.")

    with ScriptedServer(script) as server:
        arguments = here.arguments(server, "Go.", "--best-of", "2", "--json", "--tests", TESTS, "--apply", "best")
        assert main(arguments) == 42
    run = told(capsys)
    assert run["best"] is None and [bool(each["error"]) for each in run["agents"]] == [False, True]
    assert (here.project / "a.py").read_text() == "x = 1\n"
    assert main(["agent", "--apply", "all", "--dir", str(here.project)]) == 42
    assert "answers to one task" in capsys.readouterr().err


def test_several_tasks_whose_conflict_is_seen_while_they_work(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tasks_in("# two\nMake x two.\n\nMake x three.\n")
    board = Board(tasks)

    def script(body: Json) -> Reply:
        asked = next(each["content"] for each in body["messages"] if each["role"] == "user")
        if body["messages"][-1]["role"] == "user":
            return write("a.py", "x = 2\n" if "two" in asked else "x = 3\n")
        if not all(status.conflicts for status in board.agents.values()):
            return Reply("", [("run_terminal_cmd", {"command": "sleep 0.1"})])
        return Reply("Done.")

    with ScriptedServer(script) as server:
        given = [f'endpoint.url="{server.url}"', 'endpoint.model="m"', f'fleet.directory="{here.trees}"']
        asked = Asked(tasks, here.project, ["run(sleep *)"])
        config = load_recipe(None, AgentConfig, given)
        played = asyncio.run(play(config, asked, SessionStore(here.home), board))
    assert [done.stop for done in played.run.done] == ["finished"] * 2
    assert board.agents["agent-1"].conflicts == {"agent-2": ("a.py",)} and board.agents["agent-1"].size == "+1 -1"
    [conflict] = played.conflicts
    assert {conflict.first, conflict.second} == {"agent-1", "agent-2"} and conflict.paths == ("a.py",)
    assert main(["agent", "--apply", "best", "--dir", str(here.project)]) == 42
    assert "had different tasks" in capsys.readouterr().err
    assert main(["agent", "--apply", "all", "--dir", str(here.project)]) == 42
    said = capsys.readouterr()
    assert "brought agent-1 into your tree: a.py" in said.out and "agent-2 conflicts with your changes" in said.err
    assert (here.project / "a.py").read_text() == "x = 2\n"


def test_a_kill_leaves_nothing_that_the_next_run_does_not_clear_up(
    here: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(body: Json) -> Reply:
        asked = next(each["content"] for each in body["messages"] if each["role"] == "user")
        if body["messages"][-1]["role"] == "user":
            return write("a.py" if "quick" in asked else "c.py", "x = 2\n")
        if "slow" in asked:
            return Reply("", [("run_terminal_cmd", {"command": "sleep 100"})])
        return Reply("Done.")

    (here.project.parent / "tasks").write_text("The quick one.\nThe slow one.\n")
    before = here.users()
    with ScriptedServer(script) as server:
        more = ["--fleet", str(here.project.parent / "tasks"), "--allow", "run"]
        command = [sys.executable, "-m", "etude.cli.main", *here.arguments(server, *more)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as child:
            assert child.stderr is not None
            seen = ""
            while "agent-1: 1 file" not in seen:
                seen += child.stderr.readline()
                assert child.poll() is None, seen
            until = time.monotonic() + 60
            while len(server.requests) < 4 or len(here.left()) > 2:  # the slow one at work, the other's place gone
                assert time.monotonic() < until, (seen, here.left())
                time.sleep(0.01)
            child.kill()
        assert len(here.left()) == 2 and here.users() == before
        assert main(["agent", "--results", "--json", "--dir", str(here.project)]) == 0
        [kept] = told(capsys)["agents"]
        assert kept["agent"] == "agent-1" and git(here.project, "show", f"{kept['commit']}:a.py") == "x = 2\n"
        assert main(here.arguments(server, "The quick one.", "--best-of", "1", "--json")) == 0
    ended = capsys.readouterr()
    [ref] = git(here.project, "for-each-ref", "--format=%(refname)", "refs/etude/orphans").split()
    assert ref in ended.err and git(here.project, "show", f"{ref}:c.py") == "x = 2\n"
    assert here.left() == [] and here.users() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_each_had_done(
    here: Setting, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    def script(body: Json) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return write("a.py", "x = 2\n")
        return Reply("", [("run_terminal_cmd", {"command": "touch begun; sleep 100"})])

    before = here.users()
    with ScriptedServer(script) as server:
        command = [sys.executable, "-m", "etude.cli.main"]
        command += here.arguments(server, "Go.", "--best-of", "2", "--json", "--allow", "run")
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
            until = time.monotonic() + 60
            while len(list(here.trees.glob("*/*/tree/begun"))) < 2:
                assert time.monotonic() < until and child.poll() is None
                time.sleep(0.01)
            os.killpg(child.pid, number)  # as a terminal does, to everything that was started
            said = child.communicate(timeout=60)[1]
    assert child.returncode == code and "what each had done is kept" in said
    assert here.left() == [] and here.users() == before
    assert main(["agent", "--results", "--json", "--dir", str(here.project)]) == 0
    run = told(capsys)
    assert [each["error"] for each in run["agents"]] == ["interrupted"] * 2 and run["best"] is None
    assert main(["agent", "--apply", "2", "--dir", str(here.project)]) == 0
    assert (here.project / "a.py").read_text() == "x = 2\n"


def test_old_runs_are_forgotten_with_what_they_held(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(answers("x = 2\n", "x = 3\n")) as server:
        assert main(here.arguments(server, "Go.", "--best-of", "1", "--json")) == 0
        old = told(capsys)["run_id"]
        [record] = here.home.glob("fleets/*/*.jsonl")
        for number in range(19):
            record.with_name(f"2999{number:02}.jsonl").write_bytes(record.read_bytes())
        assert main(here.arguments(server, "Go.", "--best-of", "1", "--json")) == 0
    new = told(capsys)["run_id"]
    refs = git(here.project, "for-each-ref", "--format=%(refname)", "refs/etude/results").split()
    assert refs == [f"refs/etude/results/{new}/agent-1"] and not record.exists() and old != new


def test_what_is_wrong_is_said_before_anything_begins(here: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    inner = here.project / "inner"
    inner.mkdir()
    with ScriptedServer([]) as server:
        for more, said in (
            (["Go.", "--best-of", "9"], "choose from 1 to 8"),
            (["Go.", "--best-of", "0"], "choose from 1 to 8"),
            (["--best-of", "2"], "needs a PROMPT"),
            (["Go.", "--fleet", "tasks"], "give one of the two"),
            (["--fleet", str(here.project / "none")], "cannot be read"),
            (["--fleet", os.devnull], "no task"),
            (["Go.", "--best-of", "2", "--dir", str(inner)], f"start at its top, {here.project}"),
            (["--apply", "best"], "no agents have worked side by side"),
        ):
            assert main(here.arguments(server, *more)) == 42
            assert said in capsys.readouterr().err
    assert here.left() == []


def test_a_file_of_tasks() -> None:
    assert tasks_in("one\n\n# not this\n two \n") == {"agent-1": "one", "agent-2": "two"}
    assert tasks_in("---\none\n\nmore of it\n---\n\n---\ntwo\n") == {"agent-1": "one\n\nmore of it", "agent-2": "two"}
    assert best_of(2, "x") == {"agent-1": "x", "agent-2": "x"}
    with pytest.raises(ConfigError, match="no task"):
        tasks_in("# nothing\n\n")


def test_a_line_holds_nothing_that_a_terminal_obeys() -> None:
    assert short_line("ls \x1b[31mred\x07\u202e\nmore") == "ls ␛[31mred␇<U+202E>"
    assert [short(number) for number in (7, 4_200, 41_000, 1_230_000)] == ["7 tok", "4.2k tok", "41k tok", "1.2M tok"]
    board = Board({"agent-1": "one"})
    assert clock(Status("t", began=10.0, ended=135.0)) == "2:05" and drawn(board).row_count == 1

"""The gate before real tools in a real sandbox: what is refused does not happen, and what is asked is asked once."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.errors import ConfigError
from etude.harness.permissions import Answer, Gate, Judge, PermissionConfig, Question, load_permissions, remember
from etude.harness.permissions.paths import WorkspacePaths
from etude.harness.permissions.store import IN_REPOSITORY
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools import TOOLS, ToolConfig, run_calls
from etude.harness.tools.base import ToolError

BY_NAME = {tool.name: tool for tool in TOOLS}
RULES = PermissionConfig(allow=("run(echo *)",), deny=("run(touch denied)", "edit(locked/**)"))


class User:
    """Answers questions from a script, and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.heard: list[list[Question]] = []

    async def __call__(self, questions: Sequence[Question]) -> Sequence[Answer]:
        self.heard.append(list(questions))
        return [self.answers.pop(0) for _ in questions]


def call(command: str) -> ToolCall:
    return ToolCall("run_terminal_cmd", {"command": command}, "")


async def play(gate: Gate, sandbox: Sandbox, *calls: ToolCall | MalformedCall, review: bool = True) -> list[str]:
    if review:
        await gate.review(calls)
    results = await run_calls(calls, gate.guard(BY_NAME), sandbox, ToolConfig(), lambda *_: None)
    return [result.text for result in results]


def test_a_guarded_tool_looks_like_itself() -> None:
    guarded = Gate(Judge(RULES)).guard(BY_NAME)
    assert [tool.json_schema() for tool in guarded.values()] == [tool.json_schema() for tool in TOOLS]
    assert [tool.signature() for tool in guarded.values()] == [tool.signature() for tool in TOOLS]


def test_a_turn_is_asked_about_at_once_and_only_what_was_granted_happens(in_sandbox: Callable[..., Any]) -> None:
    user = User(Answer(True), Answer(False, words="not that one"))
    gate = Gate(Judge(RULES), user)

    async def scenario(sandbox: Sandbox) -> None:
        calls = [
            call("echo hi"),
            call("touch granted"),
            call("touch refused"),
            call("touch denied"),
            MalformedCall("no", ""),
        ]
        texts = await play(gate, sandbox, *calls)
        assert texts[:3] == ["hi", "", "error: not that one"] and texts[4] == "error: no"
        assert texts[3] == "error: not permitted: touch denied: rule deny run(touch denied)"
        assert [entry.name for entry in await sandbox.list_dir("/workspace")] == ["granted"]

    in_sandbox(scenario)
    [questions] = user.heard
    assert [question.arguments["command"] for question in questions] == ["touch granted", "touch refused"]
    assert "touch granted: no rule matches" in questions[0].decision.explain()
    assert gate.counts == {"allowed": 1, "granted": 1, "refused": 1, "denied": 1}


def test_no_call_goes_round_the_gate(in_sandbox: Callable[..., Any]) -> None:
    user = User(Answer(False))

    async def scenario(sandbox: Sandbox) -> None:
        [text] = await play(Gate(Judge(RULES), user), sandbox, call("touch a"), review=False)
        assert text.startswith("error: the user refused this: touch a: no rule matches")
        write = ToolCall("write_file", {"path": "locked/a", "content": "x"}, "")
        assert (await play(Gate(Judge(RULES)), sandbox, write, review=False))[0].startswith("error: not permitted")
        assert await sandbox.list_dir("/workspace") == []

    in_sandbox(scenario)
    assert len(user.heard) == 1


def test_an_answer_counts_for_its_call_and_only_once() -> None:
    user = User(Answer(True), Answer(False), Answer(False))
    gate = Gate(Judge(RULES), user)

    async def scenario() -> list[bool]:
        await gate.review([call("foo")])
        granted = []
        for _ in range(2):
            granted.append(await permitted(gate, "foo"))
        await gate.review([call("foo")])
        return granted

    assert asyncio.run(scenario()) == [True, False] and len(user.heard) == 3


def test_always_holds_from_then_on_and_nobody_to_ask_is_a_no() -> None:
    user = User(Answer(True, rules=("run(cargo build *)",)))
    gate = Gate(Judge(RULES), user)

    async def scenario() -> None:
        assert await permitted(gate, "cargo build")
        assert await permitted(gate, "cargo build --release")
        assert not await permitted(Gate(Judge(RULES)), "cargo build")

    asyncio.run(scenario())
    assert len(user.heard) == 1


def test_a_yes_of_a_turn_that_was_cancelled_answers_no_later_question() -> None:
    """The same call is asked about in both turns, and in the first it was never made."""
    user = User(Answer(True), Answer(False))
    gate = Gate(Judge(RULES), user)

    async def scenario() -> bool:
        await gate.review([call("make deploy")])
        await gate.review([call("make deploy")])
        return await permitted(gate, "make deploy")

    assert not asyncio.run(scenario()) and len(user.heard) == 2


def test_a_no_adds_no_rules_and_a_yes_for_this_session_is_not_written(tmp_path: Path) -> None:
    rules, file = ("run(make *)",), tmp_path / "permissions.toml"
    answers = (Answer(False, rules, lasting=True), Answer(True, rules), Answer(True, ("run(cargo *)",), lasting=True))
    user = User(*answers)
    gate = Gate(Judge(RULES), user, partial(remember, tmp_path, file=file))

    async def scenario() -> None:
        assert not await permitted(gate, "make a") and not file.exists()
        assert await permitted(gate, "make b") and len(user.heard) == 2, "the no has allowed nothing"
        assert await permitted(gate, "make c") and len(user.heard) == 2, "the yes holds in this session"
        assert not file.exists(), "and in no other"
        assert await permitted(gate, "cargo run")

    asyncio.run(scenario())
    assert load_permissions(tmp_path, file).allow == ("run(cargo *)",)


async def permitted(gate: Gate, command: str) -> bool:
    try:
        await gate.permit("run_terminal_cmd", {"command": command})
    except ToolError:
        return False
    return True


def test_a_users_file_and_a_repositorys(tmp_path: Path) -> None:
    file, project, other = tmp_path / "etude" / "permissions.toml", tmp_path / "project", tmp_path / "other"
    assert load_permissions(project, file).model_dump() == PermissionConfig().model_dump()
    remember(project, ["run(make *)", "read(/etc/hosts)"], file)
    remember(project, ["run(make *)", "run(ls)"], file)
    file.write_text('[permissions]\nruns = "deny"\nask = ["run(git push *)"]\n' + file.read_text())
    (project / ".etude").mkdir(parents=True)
    (project / IN_REPOSITORY).write_text('deny = ["run(make clean *)"]\n')
    loaded = load_permissions(project, file)
    assert loaded.allow == ("run(make *)", "read(/etc/hosts)", "run(ls)")
    assert (loaded.ask, loaded.deny, loaded.runs) == (("run(git push *)",), ("run(make clean *)",), "deny")
    assert load_permissions(other, file).allow == ()
    assert [path.name for path in file.parent.iterdir()] == ["permissions.toml"]


_COMMENTED = """# mine, by hand
[permissions]
ask = [  # always
  "run(git push *)" ]

# the engine
[projects."/none"]   # elsewhere
allow = ['run(a)']
# the end"""
HERE = "[projects.'NAME']  # here\n"
ADDED = 'allow = ["run(b *)"]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f'[projects."NAME"]\n{ADDED}'),
        (_COMMENTED, f'{_COMMENTED}\n\n[projects."NAME"]\n{ADDED}'),
        (f"# x\n{HERE}allow = ['run(a)'] # y\n\n# z\n", f"# x\n{HERE}allow = ['run(a)', \"run(b *)\"] # y\n\n# z\n"),
        (
            f"{HERE}allow = [\n    # first\n    'run(a)', # a\n]\n{_COMMENTED}",
            f"{HERE}allow = [\n    # first\n    'run(a)', # a\n    \"run(b *)\",\n]\n{_COMMENTED}",
        ),
        (f"{HERE}deny = []\n{_COMMENTED}", f"{HERE}{ADDED}deny = []\n{_COMMENTED}"),
        (HERE.strip(), f"{HERE}{ADDED}"),
        (
            f'[permissions]\nask = ["""\nrun(a\n{HERE})"""]\n{HERE}',
            f'[permissions]\nask = ["""\nrun(a\n{HERE})"""]\n{HERE}{ADDED}',
        ),
        ("# x\r\n[permissions]\r\n", f'# x\r\n[permissions]\r\n\r\n[projects."NAME"]\r\n{ADDED.strip()}\r\n'),
        ("projects.'NAME'.deny = [] # x\n", "projects.'NAME'.deny = [] # x\nprojects.'NAME'.allow = [\"run(b *)\"]\n"),
        ("[projects]\n'NAME' = {} # x\n", "[projects]\n'NAME' = {allow = [\"run(b *)\"]} # x\n"),
        ("projects = {} # x\n", 'projects = {"NAME" = {allow = ["run(b *)"]}} # x\n'),
    ],
)
def test_what_is_always_allowed_leaves_the_rest_of_the_file_as_it_is(tmp_path: Path, before: str, after: str) -> None:
    kept, file = tmp_path / "kept.toml", tmp_path / "p.toml"
    kept.write_bytes(before.replace("NAME", str(tmp_path)).encode())
    file.symlink_to(kept)
    for _ in range(2):
        remember(tmp_path, ["run(b *)"], file)
        assert kept.read_bytes().decode() == after.replace("NAME", str(tmp_path)) and file.is_symlink()
    assert load_permissions(tmp_path, file).allow[-1] == "run(b *)"


def test_a_repository_allows_nothing(tmp_path: Path) -> None:
    (tmp_path / ".etude").mkdir()
    for text in ('allow = ["run"]', 'runs = "allow"', "builtin = false"):
        (tmp_path / IN_REPOSITORY).write_text(text)
        with pytest.raises(ConfigError, match="may only `ask` and `deny`"):
            load_permissions(tmp_path, tmp_path / "none.toml")
    (tmp_path / IN_REPOSITORY).write_text('[permissions]\ndeny = ["run(ls)"]')
    with pytest.raises(ConfigError, match=r'permissions: .* without a table above them: `deny = \["run\(git push'):
        load_permissions(tmp_path, tmp_path / "none.toml")


def test_whose_rule_decided_is_said(tmp_path: Path) -> None:
    """A user who never wrote it would look for it in their own file."""
    file, project = tmp_path / "p.toml", tmp_path / "engine" / "src"
    subprocess.run(["git", "init", "-q", project.parent], check=True)
    for place, rule in ((project.parent, "run(npm *)"), (project, "run(make *)")):
        (place / ".etude").mkdir(parents=True)
        (place / IN_REPOSITORY).write_text(f'deny = ["{rule}", "run(both *)"]')
    file.write_text('[permissions]\ndeny = ["run(mine *)", "run(both *)"]')
    judge = Judge(load_permissions(project, file), env={})

    def said(command: str) -> str:
        return judge.judge("run_terminal_cmd", {"command": command}).explain()

    assert said("npm x") == "npm x: rule deny run(npm *) of this repository"
    assert said("make x") == "make x: rule deny run(make *) of this repository's src"
    assert said("mine x") == "mine x: rule deny run(mine *)" and said("both x") == "both x: rule deny run(both *)"
    top = Judge(load_permissions(project.parent, file), env={})
    assert "npm *) of this repository" in top.judge("run_terminal_cmd", {"command": "npm x"}).explain()


@pytest.mark.parametrize(
    "text", ["a = [", "[other]\nx = 1", "[permissions]\nallow = ['run()']", "[permissions]\nx = 1"]
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"p\.toml"):
        load_permissions(tmp_path, tmp_path / "p.toml")


def test_the_mode_holds_from_the_next_call_on() -> None:
    """Reading only goes before what a rule allows; being asked less does not go before what a rule denies."""
    asked: list[str] = []

    async def ask(questions: Sequence[Question]) -> Sequence[Answer]:
        asked.extend(question.tool for question in questions)
        return [Answer(True) for _ in questions]

    config = PermissionConfig(allow=("run(make *)",), deny=("edit(secret.py)",))
    gate = Gate(Judge(config), ask)
    make, unruled = ("run_terminal_cmd", {"command": "make x"}), ("run_terminal_cmd", {"command": "cargo run"})
    read, write, secret = (
        ("read_file", {"path": "a"}), ("write_file", {"path": "a"}), ("write_file", {"path": "secret.py"}),
    )  # fmt: skip

    async def permitted() -> list[bool]:
        found = []
        for tool, arguments in (read, write, make, unruled, secret):
            try:
                await gate.permit(tool, arguments)
                found.append(True)
            except ToolError:
                found.append(False)
        return found

    async def play() -> None:
        assert await permitted() == [True, True, True, True, False] and asked == ["run_terminal_cmd"]
        gate.mode = "read"
        assert await permitted() == [True, False, False, False, False]
        gate.mode = "auto"
        assert await permitted() == [True, True, True, True, False] and len(asked) == 1, "nobody was asked again"

    asyncio.run(play())


SLOW_GIT = """#!/bin/sh
: > {at}/asked
until [ -e {at}/answer ]; do sleep 0.01; done
exec {git} "$@"
"""


def test_others_go_on_while_the_judge_waits_for_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited on the event loop would never see the answer given, and judge without git at its deadline."""
    project, git = tmp_path / "project", shutil.which("git")
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / "a").write_text("1")
    save = ["-c", "user.name=u", "-c", "user.email=u@example.org", "-C", project]
    for words in (["add", "a"], ["commit", "-qm", "a"], ["rm", "-q", "a"], ["commit", "-qm", "none"]):
        subprocess.run(["git", *save, *words], check=True)
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(SLOW_GIT.format(at=tmp_path, git=git))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    judge = Judge(
        PermissionConfig(allow=("run(git *)",)), WorkspacePaths(project), guarded=lambda path, _: f"{path} is listed"
    )
    gate = Gate(judge)

    async def answer() -> None:
        while not (tmp_path / "asked").exists():
            await asyncio.sleep(0.01)
        (tmp_path / "answer").touch()

    async def both() -> None:
        async with asyncio.timeout(60):
            answering = asyncio.create_task(answer())
            with pytest.raises(ToolError, match="a is listed"):
                await gate.permit("run_terminal_cmd", {"command": "git checkout HEAD~1"})
            await answering

    asyncio.run(both())

"""What `toolset = "agent"` puts around a session in a sandbox: rules, permissions, redaction, and what has changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.errors import CheckpointError, ConfigError
from etude.harness.began import Began
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.permissions.store import IN_REPOSITORY
from etude.harness.prompt import persona
from etude.harness.rules import file_rules, read_rules, sandbox_rules
from etude.harness.safeguards import safeguards
from etude.harness.session import check_room
from etude.harness.tools import ToolConfig
from etude.harness.tools.base import ToolError
from etude.models.chat import ChatRenderer
from etude.records import Limits, Task, Verifier

AGENT = HarnessConfig(toolset="agent")
KEY = "sk-" + "aZ0bY1cX2dW3eV4fU5gT6hS7iR8jQ9kP"
FILES = {"settings.py": f'TOKEN = "{KEY}"\n'.encode(), "old.py": b"import os\n"}
LAID = {
    "AGENTS.md": b"Top.\n", "CLAUDE.md": b"@AGENTS.md\n", "b/AGENTS.md": "In b, é.\n".encode(),
    "a/x/CLAUDE.md": b"In a.\n",
    "a-b/AGENTS.md": b"Beside.\n", ".hidden/AGENTS.md": b"no\n", "node_modules/AGENTS.md": b"no\n",
    "1/2/3/4/AGENTS.md": b"Deep.\n", "1/2/3/4/5/AGENTS.md": b"no\n", "long/AGENTS.md": b"x" * 70_000,
    "docs/real.md": b"r\n",
}  # fmt: skip
LINKS = (
    "ln -s real.md docs/AGENTS.md; ln -s /etc/hostname a/AGENTS.md; ln AGENTS.md b/CLAUDE.md; "
    "mkdir q; ln -s ../AGENTS.md q/CLAUDE.md"
)


def test_rules_in_a_sandbox_are_those_of_a_directory_here(in_sandbox: Callable[..., Any], tmp_path: Path) -> None:
    for name, data in LAID.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    plain = read_rules(tmp_path)
    assert os.system(f"cd {shlex.quote(str(tmp_path))} && {LINKS}") == 0

    async def scenario(sandbox: Sandbox) -> tuple[str, str, str]:
        before = await sandbox_rules(sandbox, lambda _: True)
        assert (await sandbox.exec(LINKS)).exit_code == 0
        some = await sandbox_rules(sandbox, lambda name: not name.startswith("b/"))
        return before, await sandbox_rules(sandbox, lambda _: True), some

    before, after, some = in_sandbox(scenario, LAID)
    assert before == plain == file_rules(LAID)
    assert after == read_rules(tmp_path) != plain and "docs/AGENTS.md" in after and "a/AGENTS.md" not in after
    assert some == read_rules(tmp_path, ["b"]) != after


def test_a_rule_denies_and_nothing_is_asked(in_sandbox: Callable[..., Any]) -> None:
    files = {**FILES, IN_REPOSITORY: b'ask = ["run(ls *)"]\ndeny = ["run(rm *)", "read(settings.py)"]\n'}

    async def scenario(sandbox: Sandbox) -> None:
        around = safeguards(AGENT, sandbox, files, "s")
        call = around.tools["run_terminal_cmd"].run
        assert "old.py" in await call(sandbox, AGENT.tool, {"command": "ls ."})
        for command in ("rm old.py", "true && rm old.py", "echo x > /opt/x", "cat settings.py"):
            with pytest.raises(ToolError, match="not permitted"):
                await call(sandbox, AGENT.tool, {"command": command})
        assert dict(around.gate.counts) == {"allowed": 1, "denied": 4}

    in_sandbox(scenario, files)
    with pytest.raises(ConfigError, match="a repository may only `ask` and `deny`"):
        safeguards(AGENT, None, {IN_REPOSITORY: b'allow = ["run"]\n'}, "s")  # type: ignore
    with pytest.raises(ConfigError, match="not valid TOML"):
        safeguards(AGENT, None, {IN_REPOSITORY: b"deny"}, "s")  # type: ignore


def test_marks_stand_for_the_same_in_another_process(in_sandbox: Callable[..., Any]) -> None:
    """A rollout that is taken up edits around a secret that it read before."""

    async def scenario(sandbox: Sandbox) -> str:
        first = safeguards(AGENT, sandbox, FILES, "g1/2")
        begun = await first.begin()
        shown = await first.tools["read_file"].run(sandbox, AGENT.tool, {"path": "settings.py"})
        assert KEY not in shown and "[secret model-key " in shown
        again = safeguards(AGENT, sandbox, FILES, "g1/2")
        edit = {"path": "settings.py", "old": shown.strip(), "new": f"{shown.strip()}\nMORE = 1"}
        with pytest.raises(ToolError, match="was not read in this session"):
            await again.tools["edit_file"].run(sandbox, AGENT.tool, edit)
        await again.take_up(begun)
        await again.tools["edit_file"].run(sandbox, AGENT.tool, edit)
        other = safeguards(AGENT, sandbox, FILES, "g1/3")
        assert await other.tools["read_file"].run(sandbox, AGENT.tool, {"path": "settings.py"}) != shown
        return (await sandbox.read_file("/workspace/settings.py")).decode()

    assert in_sandbox(scenario, FILES) == f'TOKEN = "{KEY}"\nMORE = 1\n'


def test_what_has_changed_since_the_beginning(in_sandbox: Callable[..., Any]) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.exec("echo built > made.txt; echo other > old.py")  # what set it up, before the session
        began = Began(sandbox, ToolConfig(), FILES)
        with pytest.raises(CheckpointError, match="nobody looked"):
            await began.changed()
        await began.look()
        assert sorted(began.brought or ()) == ["made.txt", "old.py"] and await began.changed() == []
        await sandbox.exec("echo y >> made.txt; rm old.py; mkdir 'a b'; echo z > 'a b/new.py'; touch settings.py")
        assert await began.changed() == ["a b/new.py", "made.txt"], "what is gone is not among them"
        assert await began.read("settings.py") == FILES["settings.py"] and await began.read("made.txt") is None
        later = Began(sandbox, ToolConfig(), FILES)
        later.brought = began.brought
        assert await later.changed() == ["a b/new.py", "made.txt"]

    in_sandbox(scenario, FILES)


def test_room_is_looked_for_with_the_rules(chat: ChatRenderer) -> None:
    task = Task(
        "t", "Go.", {"AGENTS.md": b"Mind this. " * 400}, Verifier({"/tests/test.sh": b""}, "sh /tests/test.sh", 1)
    )
    dialogue = TokenDialogue(None, chat, AGENT.chosen(), session_id="s", seed=0, explained=True)  # type: ignore
    opening = dialogue.opening(dialogue.system(persona("")), task.instruction).tokens
    limits = Limits(max_turns=1, max_context_tokens=opening + 100, max_sampled_tokens=100)
    with pytest.raises(ConfigError, match="no room for a single turn"):
        check_room(task, dialogue, AGENT, limits)
    small = HarnessConfig()
    check_room(task, TokenDialogue(None, chat, small.chosen(), session_id="s", seed=0), small, limits)  # type: ignore

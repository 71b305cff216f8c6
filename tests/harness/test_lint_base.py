"""read_lints speaks of what the session changed: not of what the user had not committed, and of commits of its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from killed_session import FromContext
from users_git import git

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.prompt import render_call
from etude.harness.session import Session
from etude.harness.store import SessionStore
from etude.harness.tools import ToolConfig
from etude.models.chat import ChatRenderer
from etude.records import Limits

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
BROKEN, OTHERWISE = '{"a": 1,}\n', "[1\n"
LINT = render_call("read_lints", {})


@pytest.fixture
def project(outer: Path) -> Path:
    """An old fault that is committed, one that is not, and an ignored one."""
    root = outer / "project"
    root.mkdir()
    (root / "committed.json").write_text(BROKEN)
    (root / ".gitignore").write_text("ignored.json\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    (root / "dirty.json").write_text(BROKEN)
    (root / "ignored.json").write_text(BROKEN)
    return root


def play(
    project: Path,
    chat: ChatRenderer,
    session_id: str,
    says: Sequence[str],
    *,
    new: bool,
    tool: ToolConfig | None = None,
) -> list[str]:
    """One prompt, in a process's worth of objects of its own; what read_lints answered in it."""

    async def whole() -> list[str]:
        store = SessionStore(project.parent / "home")
        config = HarnessConfig(toolset="agent", tool=tool or ToolConfig())
        limits = Limits(max_turns=50, max_context_tokens=50_000, max_sampled_tokens=50_000, wall_s=100)
        with store.open(session_id, new=new) as journal:
            workspace = await open_workspace(project, WorkspaceConfig())
            try:
                sampler = FromContext(chat, lambda number: says[number])
                dialogue = TokenDialogue(sampler, chat, config.chosen(), session_id=session_id, seed=1)
                shadow, log = store.shadow(session_id, project), EventLog(journal=journal)
                session = Session(workspace, dialogue, config, limits, log, snapshots=shadow)
                if new:
                    session.begin(id=session_id, workspace=str(project), time="2026-01-01T00:00:00+00:00")
                before = log.length
                assert await session.prompt("Go.") == "finished"
                events = log.events[before:]
            finally:
                await workspace.destroy()
        done = [each.data for each in events if each.kind == "tool_result" and each.data["name"] == "read_lints"]
        return [each["text"] for each in sorted(done, key=lambda each: (each["turn"], each["index"]))]

    return asyncio.run(whole())


def write(path: str, text: str) -> str:
    return render_call("write_file", {"path": path, "content": text})


def test_only_what_the_session_brought_is_new_and_still_so_after_a_resume(project: Path, chat: ChatRenderer) -> None:
    first = [
        LINT,
        write("new.json", BROKEN) + write("dirty.json", f"\n{BROKEN}") + LINT,
        render_call("run_terminal_cmd", {"command": "rm committed.json"}),
        "Done.",
    ]
    nothing, found = play(project, chat, "one", first, new=True)
    assert nothing == "no file has changed", "what the user had not committed is not the session's"
    assert found.startswith("new.json:1: ") and found.count("\n") == 0, "a line that moved, in a file nobody committed"

    git(project, "add", "-A")
    git(project, "commit", "-qm", "what the session did")
    again = [
        *first,
        LINT + render_call("read_lints", {"path": "dirty.json"}),
        write("dirty.json", OTHERWISE) + LINT,
        "Done.",
    ]
    kept, moved, worse = play(project, chat, "one", again, new=False)
    assert kept == found, "the base is the session's first snapshot, not its last prompt's, nor HEAD"
    assert moved.startswith("nothing new in 1 file")
    assert {row.split(":")[0] for row in worse.split("\n")} == {"new.json", "dirty.json"}

    named = play(project, chat, "two", [LINT, "Done."], new=True, tool=ToolConfig(lint_base="HEAD~1"))
    assert {row.split(":")[0] for row in named[0].split("\n")} == {"new.json", "dirty.json"}, "a named revision counts"


def test_a_workspace_without_git_has_a_beginning_too(outer: Path, chat: ChatRenderer) -> None:
    root = outer / "project"
    root.mkdir()
    (root / "old.json").write_text(BROKEN)
    nothing, found = play(root, chat, "one", [LINT, write("new.json", BROKEN) + LINT, "Done."], new=True)
    assert nothing == "no file has changed" and found.startswith("new.json:1: ")

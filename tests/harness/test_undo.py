"""Undo, redo, fork and diff of whole sessions: files and conversation go back together."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from directory_sandbox import DirectorySandbox
from killed_session import FromContext

from etude.errors import CheckpointError, ConfigError
from etude.harness.config import HarnessConfig
from etude.harness.dialogue import TokenDialogue
from etude.harness.events import EventLog
from etude.harness.prompt import render_call
from etude.harness.schema import ToolCall
from etude.harness.session import Session
from etude.harness.state import Turn
from etude.harness.store import SessionStore
from etude.models.chat import ChatRenderer
from etude.records import Limits

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
LIMITS = Limits(max_turns=50, max_context_tokens=50_000, max_sampled_tokens=50_000, wall_s=60)


def script(number: int) -> str:
    """Three turns a prompt: write, look, words."""
    if number % 3 == 0:
        return render_call("write_file", {"path": f"{number}.txt", "content": f"{number}\n"})
    return render_call("list_dir", {}) if number % 3 == 1 else f"Done {number}."


class Fixture:
    """A workspace, a store, and sessions between them."""

    def __init__(self, root: Path, chat: ChatRenderer) -> None:
        self.workspace, self.chat, self.store = root / "workspace", chat, SessionStore(root / "home")
        self.workspace.mkdir()
        (self.workspace / "user.txt").write_text("mine\n")

    def session(self, session_id: str, new: bool = False) -> Session:
        config = HarnessConfig()
        sampler = FromContext(self.chat, script)
        dialogue = TokenDialogue(sampler, self.chat, config.chosen(), session_id=session_id, seed=1)
        log = EventLog(journal=self.store.open(session_id, new=new))
        shadow = self.store.shadow(session_id, self.workspace)
        session = Session(DirectorySandbox(self.workspace), dialogue, config, LIMITS, log, snapshots=shadow)
        if new:
            session.begin(id=session_id, workspace=str(self.workspace), time="2026-01-01T00:00:00+00:00")
        return session

    def files(self) -> list[str]:
        return sorted(path.name for path in self.workspace.iterdir())


@pytest.fixture
def at(tmp_path: Path, chat: ChatRenderer) -> Fixture:
    return Fixture(tmp_path, chat)


def ids(session: Session) -> list[int]:
    return list(session.dialogue._context.ids)


def test_undo_and_redo_of_prompts(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("one")
        first = ids(session)
        (at.workspace / "user.txt").write_text("edited between\n")
        await session.prompt("two")
        second = ids(session)
        assert at.files() == ["0.txt", "3.txt", "user.txt"] and session.state.prompts == ["one", "two"]

        restored = await session.checkpoints.undo()
        assert restored.removed == ("3.txt",) and at.files() == ["0.txt", "user.txt"]
        assert (at.workspace / "user.txt").read_text() == "edited between\n", "what the user did is not undone"
        assert ids(session) == first and session.state.prompts == ["one"] and session.state.stop == "finished"
        await session.checkpoints.undo()
        assert at.files() == ["user.txt"] and session.state.prompts == [] and ids(session) == []
        assert (at.workspace / "user.txt").read_text() == "mine\n"
        with pytest.raises(ConfigError, match="nothing to undo"):
            await session.checkpoints.undo()

        await session.checkpoints.redo()
        assert ids(session) == first and at.files() == ["0.txt", "user.txt"]
        await session.checkpoints.redo()
        assert ids(session) == second and at.files() == ["0.txt", "3.txt", "user.txt"]
        with pytest.raises(ConfigError, match="nothing to redo"):
            await session.checkpoints.redo()
        session.log.journal.close()

        reopened = at.session("s")
        assert ids(reopened) == second and reopened.state.usage == session.state.usage
        await reopened.checkpoints.undo()
        await reopened.prompt("another two")
        with pytest.raises(ConfigError, match="nothing to redo"):
            await reopened.checkpoints.redo()
        assert reopened.state.prompts == ["one", "another two"]
        reopened.log.journal.close()

    asyncio.run(scenario())


def test_every_turn_can_be_undone(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("one")
        assert session.state.usage["turns"] == 3 and at.files() == ["0.txt", "user.txt"]
        await session.checkpoints.undo(turns=2)
        assert session.state.usage["turns"] == 1 and at.files() == ["0.txt", "user.txt"]
        assert session.state.turn.results[0].text == "ok", "its answer is still owed to the model"
        assert await session.prompt("go another way") == "finished"
        with pytest.raises(ConfigError, match="there are not 9 turns to undo"):
            await session.checkpoints.undo(turns=9)
        await session.checkpoints.undo(turns=session.state.usage["turns"])
        assert at.files() == ["user.txt"]
        session.log.journal.close()

    asyncio.run(scenario())


def test_calls_beside_each_other_all_wait_for_the_snapshot(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("one")
        turn = Turn(1, 0, False, [ToolCall("write_file", {"path": "a", "content": ""}, "")])
        await session.checkpoints.turn_over(turn)
        before = session.log.length

        async def change() -> int:
            await session.checkpoints.settle()
            return session.log.length

        assert await asyncio.gather(change(), change(), change()) == [before + 1] * 3
        session.log.journal.close()

    asyncio.run(scenario())


def test_diff_since_the_start(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        assert await session.checkpoints.diff() == ""
        await session.prompt("one")
        (at.workspace / "user.txt").write_text("changed\n")
        patch = await session.checkpoints.diff()
        assert "+++ b/0.txt" in patch and "-mine\n+changed\n" in patch
        assert await session.checkpoints.changed() == ["0.txt"]
        session.log.journal.close()

    asyncio.run(scenario())


def test_a_fork_has_the_past_and_its_own_future(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("one")
        middle, half = ids(session), session.log.length
        await session.prompt("two")
        forked = await at.store.fork("s", half)
        session.log.journal.close()
        other = at.session(forked)
        assert ids(other) == middle and other.state.prompts == ["one"]
        assert other.log.events[0].data["parent"] == "s" and other.log.events[0].data["id"] == forked
        await other.checkpoints.undo()
        assert at.files() == ["user.txt"] and at.session("s").state.prompts == ["one", "two"]
        other.log.journal.close()

    asyncio.run(scenario())


def test_the_store_lists_and_refuses(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("the task")
        session.log.journal.close()
        [listed] = at.store.sessions(at.workspace)
        assert (listed.id, listed.task, listed.workspace) == ("s", "the task", str(at.workspace))
        assert at.store.sessions(at.workspace.parent) == [] and at.store.workspace("s") == at.workspace
        with pytest.raises(CheckpointError, match="is there already"):
            at.store.open("s", new=True)
        with pytest.raises(ConfigError, match=r"session t is not in .*; `etude agent --list`"):
            at.store.open("t")
        for wrong in ("../s", "", "a/b"):
            with pytest.raises(ConfigError, match="no session's id"):
                at.store.open(wrong)
        with pytest.raises(ConfigError, match="lines 1 to"):
            await at.store.fork("s", 10_000)

    asyncio.run(scenario())


def test_a_snapshot_that_fails_is_said_and_survived(at: Fixture) -> None:
    async def scenario() -> None:
        session = at.session("s", new=True)
        await session.prompt("one")
        [repository] = (at.store.home / "snapshots").iterdir()
        shutil.rmtree(repository / "objects")
        (repository / "objects").write_text("gone")
        assert await session.prompt("two") == "finished"
        errors = [e.data["error"] for e in session.log.events if e.kind == "checkpoint" and "error" in e.data]
        assert errors and "git" in errors[0]
        session.log.journal.close()

    asyncio.run(scenario())

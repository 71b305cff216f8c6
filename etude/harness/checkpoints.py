"""Checkpoints of a session: when snapshots are taken, and how undo restores files and conversation together.

Owns `Checkpointer`. One checkpoint before each prompt and one after each turn, or each after which the last is old
enough, as events that say which snapshot holds the files and how much of the log leads there. A snapshot is taken while
the model writes its next message, and waited for only by the first call that could change files; so it costs a session
no time. One that fails is reported in its event, and the session goes on without it. How a snapshot is kept is the
business of a `Snapshots`: of `harness.shadow`, whose snapshots a session can also go back to, or of who plays it and
means to go on with it elsewhere. What an undone event means is that of `harness.rewind`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from etude.errors import CheckpointError, ConfigError, DeadlineExceeded
from etude.harness.began import Began
from etude.harness.rewind import Rewind
from etude.harness.shadow import Restored, Shadow
from etude.harness.state import Checkpoint, SessionState, Turn
from etude.harness.tools import Tool
from etude.harness.tools.base import Baseline
from etude.harness.tools.execute import only_reads


class Snapshots(Protocol):
    """Keeps the files of a session's workspace."""

    async def take(self, label: str) -> str:
        """As they are now; returns the snapshot's id. Raises CheckpointError and DeadlineExceeded."""
        ...


class Checkpointer:
    """For one session; `snapshots` None is a session whose files nobody wants, and nothing is kept of them.

    After a turn there is a checkpoint, if the last snapshot is `after_s` old by the session's clock: whoever only means
    to go on elsewhere would rather play some seconds again than read all files each turn. One of turns that changed no
    file costs nothing, and there always is one.
    """

    def __init__(
        self,
        state: SessionState,
        tools: Mapping[str, Tool],
        snapshots: Snapshots | None,
        after_s: float = 0.0,
        began: Began | None = None,
    ) -> None:
        self._state, self._tools, self._snapshots, self._after_s = state, tools, snapshots, after_s
        self._began = began
        """Who knows the files of the session's beginning, where it is no shadow."""
        self._shadow = snapshots if isinstance(snapshots, Shadow) else None
        self._changed = not self._is_kept(state.usage["turns"])
        """Whether files may have changed since the last snapshot."""
        self._taken_at = state.log.now
        self._taking: asyncio.Task[None] | None = None

    async def before_prompt(self) -> None:
        """The files as the user left them; they may have been edited since the last turn."""
        await self.settle()
        if self._snapshots is not None:
            self._changed = False
            await self._take(self._snapshots, "prompt", self._state.usage["turns"], self._state.log.length)

    async def turn_over(self, turn: Turn) -> None:
        """Begin the snapshot of a turn that may have changed files; another's is that of the turn before."""
        await self.settle()
        if self._snapshots is None or self._is_kept(turn.number):
            return
        self._changed = self._changed or not all(only_reads(call, self._tools) for call in turn.calls)
        line, last = self._state.log.length, self._state.checkpoints[-1:]
        if last and not self._changed:
            self._state.commit("checkpoint", of="turn", turn=turn.number, line=line, snapshot=last[0].snapshot)
        elif self._state.log.now - self._taken_at >= self._after_s:
            self._changed = False
            self._taking = asyncio.create_task(self._take(self._snapshots, "turn", turn.number, line))

    def _is_kept(self, turn: int) -> bool:
        """Whether the last checkpoint stands after this turn; so it does in a log that was cut to go on from there."""
        last = self._state.checkpoints[-1:]
        return bool(last) and last[0].turn == turn

    async def settle(self) -> None:
        """Return when no snapshot is being taken. Calls that run beside each other all wait for the same one."""
        if (taking := self._taking) is not None:
            await asyncio.shield(taking)
            if self._taking is taking:
                self._taking = None

    async def _take(self, snapshots: Snapshots, of: str, turn: int, line: int) -> None:
        self._taken_at = self._state.log.now
        try:
            snapshot = await snapshots.take(f"{of} {turn}")
        except (CheckpointError, DeadlineExceeded) as error:
            self._changed = True
            self._state.commit("checkpoint", of=of, turn=turn, line=line, error=str(error))
        else:
            self._state.commit("checkpoint", of=of, turn=turn, line=line, snapshot=snapshot)

    async def undo(self, turns: int | None = None) -> Restored:
        """Back to before the last prompt, or by so many turns: files and conversation. The log keeps everything."""
        shadow = self._need()
        await self.settle()
        target = self._target(turns)
        restored = await shadow.restore(target.snapshot)
        self._state.commit("undo", line=target.line, snapshot=target.snapshot, before=restored.before)
        await self._state.log.sync()
        return restored

    async def redo(self) -> Restored:
        """Take the last undo back. Possible until something new is said."""
        shadow = self._need()
        undo = Rewind(self._state.log).redoable
        if undo is None:
            raise ConfigError("there is nothing to redo")
        restored = await shadow.restore(undo.data["before"])
        self._state.commit("redo", before=restored.before)
        await self._state.log.sync()
        return restored

    async def diff(self) -> str:
        """What changed since the session's start, the user's own edits included, as a patch."""
        shadow = self._need()
        await self.settle()
        if not self._state.checkpoints:
            return ""
        return await shadow.diff(self._state.checkpoints[0].snapshot, await shadow.take("now"))

    async def changed(self) -> list[str]:
        """The files that are not what they were at the session's start; where nobody knows, those that tools
        changed."""
        if self._shadow is None or not self._state.checkpoints:
            if self._began is not None:
                with contextlib.suppress(CheckpointError, DeadlineExceeded):
                    return await self._began.changed()
            return list(self._state.changed)
        await self.settle()
        first, last = self._state.checkpoints[0], self._state.checkpoints[-1]
        return await self._shadow.changed(first.snapshot, last.snapshot)

    def baseline(self) -> Baseline | None:
        """The files at the session's start, whichever process it was started by; None where nobody knows."""
        if self._shadow is None or not self._state.checkpoints:
            return self._began if self._began is not None and self._began.brought is not None else None
        return self._shadow.at(self._state.checkpoints[0].snapshot)

    def _target(self, turns: int | None) -> Checkpoint:
        if turns is None:
            found = [each for each in self._state.checkpoints if each.of == "prompt"]
        else:
            before = self._state.usage["turns"] - turns
            found = [each for each in self._state.checkpoints if each.turn <= before]
        if not found:
            raise ConfigError("there is nothing to undo" if turns is None else f"there are not {turns} turns to undo")
        return found[-1]

    def _need(self) -> Shadow:
        if self._shadow is None or self._state.log.journal is None:
            raise ConfigError("this session keeps no checkpoints: it has no log on disk, or a sandbox of its own")
        return self._shadow

"""Everyone in a control group at a stand, and on again, without anybody inside being able to tell.

Owns the freezing of one group, by version 1's `freezer` or version 2's `cgroup.freeze`. A signal would be seen by
parents, and the one that lets processes go on wakes also those that the task had stopped itself. The guest agent is in
no such group: while commands stand still it can be asked for their files. What is frozen under version 1 cannot even
be killed: whoever ends a group thaws it first (see `cgroups.remove_group`).
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from etude.errors import DeadlineExceeded

_AT_ONCE = 20
"""So often it is looked without a pause, since most stand still within microseconds."""
_LOOK_EVERY_S = 0.001


@dataclass(frozen=True)
class Freezer:
    """Of one group. `switch` is written to; `state` says `frozen` in so many words once everybody stands still."""

    switch: Path
    state: Path
    words: tuple[str, str]
    """What freezes, and what thaws."""
    frozen: str

    @staticmethod
    def v1(group: Path) -> Freezer:
        """Of a group of the `freezer` hierarchy."""
        return Freezer(group / "freezer.state", group / "freezer.state", ("FROZEN", "THAWED"), "FROZEN")

    @staticmethod
    def v2(group: Path) -> Freezer:
        return Freezer(group / "cgroup.freeze", group / "cgroup.events", ("1", "0"), "frozen 1")

    async def freeze(self, what: str, timeout_s: float) -> None:
        """Returns once everybody stands still. `what` names the group in the error of a wait that was too long.

        Version 1 is told again while it has not happened. It stops each process once, and who was on its way into
        `vfork` at that moment waits for a child that stands still; where it waits, a second word stops it.
        """
        self.switch.write_text(self.words[0])
        looks, end = 0, time.monotonic() + timeout_s
        while self.frozen not in self.state.read_text():  # a moment; longer where somebody waits for a disk
            if time.monotonic() > end:
                raise DeadlineExceeded(f"the processes of {what} to stand still", timeout_s)
            await asyncio.sleep(0 if looks < _AT_ONCE else _LOOK_EVERY_S)
            looks += 1
            if looks > _AT_ONCE:
                self.switch.write_text(self.words[0])

    def thaw(self) -> None:
        """Let them go on; fine when they do, and when the group is gone."""
        try:
            self.switch.write_text(self.words[1])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise

"""The ledger: the fates of groups on disk, so that no death of a process throws one away.

    ledger/groups.jsonl   a line for every group that was opened, and one for what became of it

Owns that file, which is on the disk before anybody relies on it; a group's samples are the trajectory store's. Whether
a group was trained on it does not say: the trainer's checkpoint does, and nothing else (`rollouts.restore` puts the two
together). Decides nothing. Talks to: nobody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.harness.journal import Journal
from etude.rollouts.slots import Reason


@dataclass
class GroupRecord:
    """What the ledger says of a group."""

    index: int
    rung: int
    """What its task is drawn from."""
    size: int
    """Slots."""
    version: int
    """The oldest that its tokens can be of."""
    closed: str | None = None
    """None while it is open; "ready", or why it was dropped."""
    members: tuple[int, ...] = ()
    """Of a closed group: the slots it has closed with."""
    dropped: dict[int, Reason] = field(default_factory=dict)
    """Slots that were dropped one by one, before the group closed or when it did."""


class GroupLedger:
    """One run's, open for one process at a time. Use it on one event loop."""

    def __init__(self, directory: Path | None) -> None:
        """Without a directory it keeps nothing."""
        self.directory = directory
        self.groups: dict[int, GroupRecord] = {}
        """Every group that was ever opened, by index."""
        self._journal = None if directory is None else Journal(directory / "groups.jsonl")
        for line in self._journal or ():
            self._read(json.loads(line))

    # --- groups -------------------------------------------------------------------------------------------------------

    def opened(self, group: GroupRecord) -> None:
        """A group is wanted from now on."""
        self._write({"opened": group.index, "rung": group.rung, "size": group.size, "version": group.version})

    def dropped(self, index: int, member: int, reason: Reason) -> None:
        """A slot has ended without its group."""
        self._write({"lost": index, "member": member, "reason": reason})

    def closed(self, index: int, how: str, members: Iterable[int]) -> None:
        """A group is complete: `how` is "ready", or the reason for which it is dropped; the last word counts."""
        self._write({"closed": index, "as": how, "members": list(members)})

    async def sync(self) -> None:
        """What was written is the disk's when this returns."""
        if self._journal is not None:
            await self._journal.sync()

    def _write(self, line: dict[str, Any]) -> None:
        if self._journal is not None:
            self._journal.append(json.dumps(line).encode())
        self._read(line)

    def _read(self, line: Mapping[str, Any]) -> None:
        if "opened" in line:
            index = line["opened"]
            self.groups[index] = GroupRecord(index, line["rung"], line["size"], line["version"])
        elif "lost" in line:
            self.groups[line["lost"]].dropped[line["member"]] = line["reason"]
        else:
            group = self.groups[line["closed"]]
            group.closed, group.members = line["as"], tuple(line["members"])

    def close(self) -> None:
        """Let another process have it. Safe to call twice."""
        if self._journal is not None:
            self._journal.close()

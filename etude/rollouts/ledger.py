"""The ledger: scored samples and the fates of groups on disk, so that no death of a process throws one away.

    ledger/groups.jsonl   a line for every group that was opened, and one for what became of it
    ledger/g12-3.npz      the scored trajectory of slot g12/3; there from the moment it counts as scored

Owns these files: each is whole or not there, and on the disk before anybody relies on it. Whether a group was trained
on it does not say: the trainer's checkpoint does, and nothing else (`rollouts.restore` puts the two together). So a
group's samples stay here until a checkpoint that is saved says that it has ended, and for one checkpoint more: the
newest may be damaged. Decides nothing. Talks to: nobody.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from etude.durable import write_whole
from etude.errors import CheckpointError
from etude.harness.journal import Journal
from etude.records import Cheated, Event, InfraFailed, Outcome, Scored, Segment, Trajectory, Truncated
from etude.rollouts.slots import Reason, slot_id

_OUTCOMES: dict[str, type[Outcome]] = {kind.__name__: kind for kind in (Scored, Truncated, InfraFailed, Cheated)}
_ARRAYS = ("token_ids", "sampled", "logprobs", "versions", "routed_experts")


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


class Ledger:
    """One run's, open for one process at a time. Use it on one event loop."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.groups: dict[int, GroupRecord] = {}
        """Every group that was ever opened, by index."""
        self._journal = Journal(directory / "groups.jsonl")
        for line in self._journal:
            self._read(json.loads(line))
        self._removable: set[int] = set()

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
        await self._journal.sync()

    def _write(self, line: dict[str, Any]) -> None:
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

    # --- samples ------------------------------------------------------------------------------------------------------

    async def keep(self, trajectory: Trajectory) -> None:
        """Put a scored trajectory on the disk; it is there when this returns. CheckpointError where it is full."""
        await asyncio.to_thread(_write, self._path(trajectory.id), packed(trajectory))

    def sample(self, index: int, member: int) -> Trajectory | None:
        """The scored trajectory of a slot; None where there is none, or where the disk has damaged it: it is played
        again then, and comes out the same or is as good.
        """
        try:
            return unpacked(self._path(slot_id(index, member)).read_bytes())
        except (FileNotFoundError, BadZipFile, ValueError, KeyError, EOFError):
            return None

    def kept(self) -> set[int]:
        """Groups that have samples here."""
        return {_index(path) for path in self._samples()}

    def ended(self, indices: Iterable[int]) -> None:
        """A saved checkpoint says that these groups have ended: the next call removes their samples."""
        removable, self._removable = self._removable, set(indices)
        for path in self._samples() if removable else ():
            if _index(path) in removable:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Training is over: nobody needs a sample any more."""
        self.ended(self.kept())
        self.ended(())

    def close(self) -> None:
        """Let another process have it. Safe to call twice."""
        self._journal.close()

    def _samples(self) -> list[Path]:
        return list(self.directory.glob("g*-*.npz"))

    def _path(self, slot: str) -> Path:
        return self.directory / f"{slot.replace('/', '-')}.npz"


def _index(path: Path) -> int:
    return int(path.name[1:].partition("-")[0])


def packed(trajectory: Trajectory) -> bytes:
    """A trajectory as one compressed archive: its arrays, and all else as JSON."""
    record = {item.name: getattr(trajectory, item.name) for item in fields(trajectory)} | {
        "segments": [segment.kind for segment in trajectory.segments],
        "events": [asdict(event) for event in trajectory.events],
        "outcome": [type(trajectory.outcome).__name__, asdict(trajectory.outcome)],
    }
    arrays = {
        f"{at}.{name}": getattr(segment, name) for at, segment in enumerate(trajectory.segments) for name in _ARRAYS
    }
    file = io.BytesIO()
    np.savez_compressed(file, record=np.frombuffer(json.dumps(record, default=_plain).encode(), np.uint8), **arrays)
    return file.getvalue()


def _plain(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers, and mappings that are not dicts."""
    return value.item() if isinstance(value, np.generic) else dict(value)


def unpacked(data: bytes) -> Trajectory:
    """What `packed` packed, bit for bit. Raises BadZipFile, ValueError or KeyError for anything else."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        record = json.loads(archive["record"].tobytes())
        kind, outcome = record["outcome"]
        segments = tuple(
            Segment(**{name: archive[f"{at}.{name}"] for name in _ARRAYS}, kind=segment)
            for at, segment in enumerate(record["segments"])
        )
    rest: dict[str, Any] = {
        "segments": segments,
        "outcome": _OUTCOMES[kind](**outcome),
        "events": tuple(Event(**event) for event in record["events"]),
        "findings": tuple(record["findings"]),
    }
    return Trajectory(**record | rest)


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data, listed=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"{path.parent}: the disk is full, a sample needs {len(data) / 1e3:.0f} kB; those before it are whole: "
                "make room and go on with --resume"
            ) from None
        raise

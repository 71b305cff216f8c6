"""Verdicts on states that come again: rollouts of a task end in few distinct states, and each was verified anew.

Owns `Verdicts`, which `rewards.verifier` asks before it makes a sandbox, and `key_of`. A verdict stands for a state of
a task under a verifier. Since a verifier may be flaky, it is used only once two verifications of that state have
agreed; where two ever differ, that state is verified every time. What failed of our machinery is no verdict, and what
ran out of time may be the machine's doing: neither is kept. One `Verdicts` belongs to the `Judges` of one process,
which all sessions that are judged there share: within a process nobody but the verifier writes to it, whereas what
several shared would have to be trusted, and saves no more than two verifications a state and process. Only the tests'
verdict is kept: auditor, linters and judges look at every session, for what it did.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from etude.environments.archive import Archive
from etude.environments.base import Resources
from etude.records import InfraFailed, Task
from etude.rewards.contents import Entry, entries_of
from etude.rewards.legible import State
from etude.rewards.verifier import Verdict

AGREEING = 2
"""So many verifications must have said the same before a verdict is used again."""


@dataclass
class _Entry:
    verdict: Verdict
    times: int = 1
    differs: bool = False


class Verdicts:
    """At most `size` states, the least recently seen go first. Use it on one event loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def verdict(
        self,
        task: Task,
        state: State,
        where: tuple[str, Resources],
        verify: Callable[[], Awaitable[Verdict | InfraFailed]],
    ) -> Verdict | InfraFailed:
        """What is known of this state `where` it would be verified, or what `verify` says of it now. Two that ask for
        the same state at once both verify it."""
        began = time.monotonic()
        key = await asyncio.to_thread(key_of, task, state, where)  # a state may be many megabytes
        entry = self._entries.get(key)
        if entry is not None and entry.times >= AGREEING and not entry.differs:
            self._entries.move_to_end(key)
            return replace(entry.verdict, known=True, wall_s=time.monotonic() - began)
        given = await verify()
        if isinstance(given, Verdict) and given.reason != "timeout":
            self._learn(key, given)
        return given

    def _learn(self, key: bytes, given: Verdict) -> None:
        entry = self._entries.setdefault(key, _Entry(given, times=0))
        entry.times += 1
        entry.differs |= _said(entry.verdict) != _said(given)
        self._entries.move_to_end(key)
        while len(self._entries) > self.size:
            self._entries.popitem(last=False)


def _said(verdict: Verdict) -> tuple[object, ...]:
    return verdict.reward, verdict.reason, verdict.touched


def key_of(task: Task, state: State, where: tuple[str, Resources]) -> bytes:
    """A digest of all that a verdict depends on.

    Of the state that is each path with its kind, mode, link and content. Times of files are left out: two sessions
    never have the same.
    """
    verifier, hashed = task.verifier, hashlib.blake2b(digest_size=32)
    _add(hashed, task.id, task.image, *task.setup, repr(where), verifier.command, repr(verifier.timeout_s))
    _add(hashed, *sorted(map(str, task.provenance.get("protected", ()))))
    for files in (verifier.files, task.files):
        _add_files(hashed, files.items())
    if not isinstance(state, Archive):
        _add_files(hashed, state.items())
        return hashed.digest()
    _add(hashed, *state.places)
    _add(hashed, *(field for each in _entries(state) for field in each))
    return hashed.digest()


def _entries(state: Archive) -> Iterable[tuple[str, ...]]:
    named: dict[Entry, str] = {}
    for path, entry in sorted(entries_of(state).items()):
        first = named.setdefault(entry, path)
        digest = hashlib.blake2b(entry.data or b"").hexdigest() if first == path else ""
        yield path, f"{entry.kind!r} {entry.member.mode:o} {entry.size}", entry.target or "", first, digest


def _add_files(hashed: hashlib.blake2b, files: Iterable[tuple[str, bytes]]) -> None:
    _add(hashed, *(field for path, content in sorted(files) for field in (path, content)))


def _add(hashed: hashlib.blake2b, *fields: str | bytes) -> None:
    """Each with its length, and how many there are, so that no two lists come to the same bytes."""
    hashed.update(b"%d\n" % len(fields))
    for field in fields:
        data = field if isinstance(field, bytes) else field.encode("utf-8", "surrogatepass")
        hashed.update(b"%d\n" % len(data))
        hashed.update(data)

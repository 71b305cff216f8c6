"""The sessions of a warm start on the disk: each is there from the moment it ends, for what it cost was paid.

Owns `TaughtSession`, one line of OUT/sessions.jsonl, `TaughtSessions`, that file, and `Kept`, which says what of them
is learned. A command that is given again goes on with the file; one whose recipe would have made other sessions is
refused. The first line says what decides them. Holds no key and no header of an endpoint. Plays nothing.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.errors import CheckpointError
from etude.harness.cost import SessionCost
from etude.harness.events import encode_event
from etude.harness.journal import Journal
from etude.harness.session import SessionResult
from etude.made_by import require_same
from etude.records import Event
from etude.trainer.attempts import Attempt, Judged
from etude.trainer.documents import Document, document_of

FILE = "sessions.jsonl"


@dataclass(frozen=True)
class TaughtSession:
    """What is kept of an attempt."""

    id: str
    round: int
    task: str
    number: int
    stratum: str
    """Tasks of one stratum, such as a rung, weigh as much as those of another."""
    solved: bool
    why: str
    """As `Judged` has it."""
    played: bool
    """False where our machinery or the endpoint failed it: it is played again, and its cost stands."""
    documents: tuple[Document, ...]
    """Of a session that was solved, what can be learned."""
    cost: SessionCost
    notes: Mapping[str, int]
    """Counts of a teacher's messages and of those that are not learned; of a script's tries and slips; of calls that
    hindsight left out."""


class Learned(NamedTuple):
    """What can be learned of a session."""

    documents: Sequence[Document]
    notes: Mapping[str, int]
    """Counts of what of it is not."""


Lesson = Callable[[SessionResult], Learned]


def all_said(result: SessionResult) -> Learned:
    """All that the session's segments have as said."""
    return Learned([*map(document_of, result.segments)], {})


def taught(judged: Judged, why: str, lesson: Lesson) -> TaughtSession:
    """`lesson` says which of its tokens are learned, where it was solved."""
    attempt, result = judged.attempt, judged.result
    learned = lesson(result) if result is not None and judged.solved else Learned((), {})
    return TaughtSession(
        id=attempt.id,
        round=attempt.round,
        task=attempt.task.id,
        number=attempt.number,
        stratum=str(attempt.task.provenance.get("rung", "")),
        solved=judged.solved,
        why=why,
        played=result is not None,
        documents=tuple(learned.documents),
        cost=judged.cost,
        notes={**judged.notes, **learned.notes},
    )


def masked(said: Any, secrets: Sequence[str]) -> Any:
    """A text, or what JSON can hold, without secrets: an endpoint may say its own key, in an error or as the model."""
    if isinstance(said, str):
        return functools.reduce(lambda text, secret: text.replace(secret, "[key]"), secrets, said)
    if isinstance(said, dict):
        return {key: masked(value, secrets) for key, value in said.items()}
    return [masked(each, secrets) for each in said] if isinstance(said, list) else said


class TaughtSessions:
    """Open in one process at a time; close it."""

    def __init__(self, directory: Path, head: Mapping[str, Any], secrets: Sequence[str] = ()) -> None:
        """`head` is what decides the sessions. Raises ConfigError where it is not that of the directory's. `secrets`
        are never written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path, self._secrets = directory / FILE, tuple(secrets)
        self._journal = Journal(self.path)
        try:
            lines = [*self._journal]
            if not lines:
                self._journal.append(_line(head))
                lines = [_line(head)]
            require_same(self.path, json.loads(lines[0]), json.loads(_line(head)))
            self.all = [_session(line, f"{self.path}, line {number}") for number, line in enumerate(lines[1:], 2)]
        except BaseException:
            self._journal.close()
            raise

    def played(self) -> dict[str, TaughtSession]:
        """Those that have a verdict, by their id."""
        return {each.id: each for each in self.all if each.played}

    async def add(self, session: TaughtSession, events: Iterable[Event] = ()) -> None:
        """On the disk when this returns, with what was said, where that is to be kept too."""
        documents = [
            {"ids": each.token_ids.tolist(), "sampled": "".join("01"[said] for said in each.sampled.tolist())}
            for each in session.documents
        ]
        said = [self.masked(json.loads(encode_event(event))) for event in events]
        row = {**asdict(session), "documents": documents, **({"events": said} if said else {})}
        self._journal.append(_line(row))
        self.all.append(session)
        await self._journal.sync()

    def masked(self, said: Any) -> Any:
        """Without secrets."""
        return masked(said, self._secrets)

    def spent(self) -> SessionCost:
        return sum((each.cost for each in self.all), SessionCost())

    def close(self) -> None:
        self._journal.close()

    def __enter__(self) -> TaughtSessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Kept:
    """What is learned of sessions: those that were solved, at most `per_task` of a task, by stratum. `dropped` counts
    the others by why."""

    def __init__(self, per_task: int, longest: int) -> None:
        """`longest` is the most tokens of a document that the learner's model takes."""
        self._per_task, self._longest = per_task, longest
        self._of_task: Counter[str] = Counter()
        self._by_stratum: dict[Any, list[Document]] = defaultdict(list)
        self.sessions = 0
        self.notes: Counter[str] = Counter()
        """Of the sessions that are learned, summed up."""
        self.dropped: Counter[str] = Counter()

    def offer(self, session: TaughtSession) -> None:
        """One that has a verdict."""
        if session.solved:
            if self.add(session.task, session.stratum, session.documents):
                self.notes.update(session.notes)
        else:
            self.dropped[session.why] += 1

    def add(self, task: str, stratum: Hashable, documents: Sequence[Document]) -> bool:
        """One that was solved; whether it is kept."""
        if why := self._against(task, documents):
            self.dropped[why] += 1
            return False
        self._of_task[task] += 1
        self._by_stratum[stratum] += documents
        self.sessions += 1
        return True

    def _against(self, task: str, documents: Sequence[Document]) -> str:
        if any(len(each.token_ids) > self._longest for each in documents):
            return "too_long"
        if not any(each.sampled.any() for each in documents):
            return "nothing_to_say"
        return "enough_of_its_task" if self._of_task[task] >= self._per_task else ""

    def balanced(self, most_repeats: int) -> list[Document]:
        """What is learned; rare strata are repeated (`balanced`)."""
        return balanced(self._by_stratum, most_repeats)


def balanced(kept: Mapping[Any, Sequence[Document]], most_repeats: int) -> list[Document]:
    """Each stratum's documents over and over until they are as many as the largest one's, or `most_repeats` times as
    many as there are.
    """
    largest = max(map(len, kept.values()), default=0)
    found: list[Document] = []
    for stratum in sorted(kept):
        documents = kept[stratum]
        wanted = min(largest, most_repeats * len(documents))
        found += [documents[place % len(documents)] for place in range(wanted)]
    return found


def of_attempts(attempts: Iterable[Attempt], known: Mapping[str, TaughtSession]) -> list[Attempt]:
    """Those that have no verdict yet."""
    return [attempt for attempt in attempts if attempt.id not in known]


def _session(line: bytes, where: str) -> TaughtSession:
    try:
        row = json.loads(line)
        row.pop("events", None)
        documents = tuple(
            Document(np.asarray(each["ids"], np.int32), np.asarray([mark == "1" for mark in each["sampled"]], bool))
            for each in row.pop("documents")
        )
        return TaughtSession(documents=documents, cost=SessionCost(**row.pop("cost")), **row)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: not a session ({error}); restore it from a copy, or remove the line") from None


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, sort_keys=True).encode("utf-8", "backslashreplace")

"""The files of a benchmark run, all of them only ever appended to.

Owns the run's directory:

  attempts.jsonl   every attempt as it ends, with what it took: the memory of the run, by which it goes on
  results.jsonl    the result: a head that pins tasks, policy and harness, then the attempts in the plan's order and
                   nothing that depends on the clock. Killed and resumed, it is byte for byte what it would have been
  sessions/        the log of every attempt

A line of `attempts.jsonl` is written after the session's log, and one of `results.jsonl` after that; so what a kill
leaves undone is caught up with when the run is taken up. Plays nothing and computes no figure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from etude.bench.attempts import Attempt, Played, attempt_of, checked
from etude.errors import CheckpointError, ConfigError
from etude.harness.events import read_events, write_events
from etude.harness.journal import Journal, whole_length, whole_lines
from etude.records import Event
from etude.tasks.names import file_name

SCHEMA = 1
T = TypeVar("T")
Key = tuple[str, int]
"""A task's id, and which attempt at it."""


@dataclass(frozen=True)
class Run:
    """A run as its files tell it. `seconds` are those of attempts that this directory saw being played."""

    head: Mapping[str, Any]
    attempts: tuple[Attempt, ...]
    seconds: Mapping[Key, float]
    directory: Path

    @property
    def name(self) -> str:
        return str(self.head["name"] or self.directory.resolve().name)

    @property
    def planned(self) -> int:
        return len(self.head["tasks"]) * int(self.head["attempts"])


class _Policy(BaseModel):
    kind: str
    command: list[str] | None = None
    skill: float | None = None
    temperature: float | None = None


class _Head(BaseModel):
    """What is read of a head."""

    name: str | None
    policy: _Policy
    attempts: int = Field(ge=1)
    tasks: dict[str, str]
    harness: Any


class _Row(BaseModel):
    attempt: Any
    seconds: float


_TABLE, _HEAD, _ROW = TypeAdapter(dict[str, Any]), TypeAdapter(_Head), TypeAdapter(_Row)


class Results:
    """The directory of a run that is being played. Another process that opens it meanwhile is refused."""

    def __init__(self, directory: Path, head: Mapping[str, Any], plan: Sequence[Key], resume: bool) -> None:
        """Raises ConfigError where there is a run and none is to be resumed, the other way round, or where it is one
        of other tasks, another policy or another harness."""
        self.directory, self._plan = directory, list(plan)
        for path in (directory / "results.jsonl", directory / "attempts.jsonl"):
            if path.exists() and not path.is_file():
                raise ConfigError(f"{path}: is no file of results; move it away, or name another --out")
        there, begun = (directory / "results.jsonl").exists(), _is_begun(directory)
        if begun and not resume:
            raise ConfigError(f"{directory}: holds a run already; add --resume to go on with it, or name another --out")
        if resume and not there:
            raise ConfigError(f"{directory}: no run to resume; leave --resume out")
        self.attempts: dict[Key, Attempt] = {}
        with contextlib.ExitStack() as stack:
            self._journal = stack.enter_context(Journal(directory / "attempts.jsonl"))
            if there and not resume:  # a run that was refused before its first attempt: another may have its place
                (directory / "results.jsonl").unlink()
            self._results = stack.enter_context(Journal(directory / "results.jsonl"))
            for _, attempt in _journaled(self._journal.path):
                self._remember(attempt)
            self._catch_up(head)
            self.close = stack.pop_all().close
            """Let another process have it."""

    def _remember(self, attempt: Attempt) -> None:
        self.attempts[attempt.task, attempt.attempt] = attempt

    def _catch_up(self, head: Mapping[str, Any]) -> None:
        """Check what is there against what should be, and add what is missing."""
        written = list(self._results)
        if written:
            path = self.directory / "results.jsonl"
            _same_run(_read(written[0], path, 1, lambda row: checked(row, _TABLE)), head, self.directory)
        else:
            self._results.append(_line(head))
            written = [_line(head)]
        self._written = len(written) - 1
        for line, key in zip(written[1:], self._plan, strict=False):
            attempt = self.attempts.get(key)
            if attempt is None or line != _line(attempt.as_json()):
                raise CheckpointError(
                    f"{self.directory}/results.jsonl: {key[0]}, attempt {key[1]} is not what attempts.jsonl says; "
                    "restore both files from a copy, or begin anew"
                )
        self._advance()

    def _advance(self) -> None:
        """Write every attempt that all before it have been written."""
        while self._written < len(self._plan) and self._plan[self._written] in self.attempts:
            self._results.append(_line(self.attempts[self._plan[self._written]].as_json()))
            self._written += 1

    @property
    def missing(self) -> list[Key]:
        """What is still to be played, in the plan's order."""
        return [key for key in self._plan if key not in self.attempts]

    async def add(self, played: Played) -> None:
        """Keep an attempt; when it returns, no power cut takes it back."""
        attempt = played.attempt
        if played.events:
            path = session_path(self.directory, attempt.task, attempt.attempt)
            path.unlink(missing_ok=True)  # of a process that was killed before it could say that this had ended
            write_events(path, played.events)
        row = {"attempt": attempt.as_json(), "seconds": round(played.seconds, 3), "plays": played.plays}
        self._journal.append(_line(row))
        await self._journal.sync()
        self._remember(attempt)
        self._advance()

    async def finish(self) -> None:
        await self._results.sync()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=True, sort_keys=True).encode()


def _is_begun(directory: Path) -> bool:
    """Whether an attempt has ended there."""
    path = directory / "attempts.jsonl"
    return path.exists() and path.stat().st_size > 0


def _same_run(there: Mapping[str, Any], head: Mapping[str, Any], directory: Path) -> None:
    head = json.loads(_line(head))
    changed = [key for key in sorted({*there, *head}) if there.get(key) != head.get(key)]
    if changed:
        told = "; ".join(f"{key} {_short(there.get(key))} is now {_short(head.get(key))}" for key in changed)
        raise ConfigError(f"{directory}: a run of something else ({told}); name another --out")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def session_path(directory: Path, task: str, attempt: int) -> Path:
    """Where an attempt's log is."""
    return directory / "sessions" / f"{file_name(task)}.{attempt}.jsonl"


def read_run(directory: Path) -> Run:
    """A run, finished or not, that another process may be writing. Raises ConfigError where there is none."""
    path = directory / "results.jsonl"
    if not path.is_file():
        raise ConfigError(f"{directory}: no benchmark run; there is no results.jsonl")
    first, *lines = whole_lines(path) if whole_length(path) else (b"{}",)
    head = _read(first, path, 1, lambda row: checked(row, _TABLE))
    if head.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: of schema {head.get('schema')!r:.20}, not {SCHEMA}; it is of another Etude")
    _read(first, path, 1, lambda row: checked(row, _HEAD))
    attempts = tuple(_read(line, path, number, attempt_of) for number, line in enumerate(lines, 2))
    journal = directory / "attempts.jsonl"
    seen = _journaled(journal) if journal.is_file() else ()
    seconds = {(attempt.task, attempt.attempt): took for took, attempt in seen}
    return Run(head, attempts, seconds, directory)


def _journaled(journal: Path) -> Iterator[tuple[float, Attempt]]:
    """What `attempts.jsonl` says: how long each took, and what came of it."""

    def of(row: Any) -> tuple[float, Attempt]:
        return checked(row, _ROW)["seconds"], attempt_of(row["attempt"])

    return (_read(line, journal, number, of) for number, line in enumerate(whole_lines(journal), 1))


def _read(line: bytes, path: Path, number: int, of: Callable[[Any], T]) -> T:
    """A line, which may be damaged, or a stranger's. Raises CheckpointError with its place."""
    try:
        return of(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}:{number}: damaged ({error}); restore it from a copy, or begin anew") from None


def session_events(run: Run, attempt: Attempt) -> Iterable[Event]:
    """The log of an attempt; nothing where it is not there."""
    path = session_path(run.directory, attempt.task, attempt.attempt)
    return read_events(path) if path.is_file() else ()

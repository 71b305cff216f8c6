"""The benchmarks beside the runs: their results, and two of them compared.

Owns the routes `/api/bench`, over `etude.bench`, whose figures they are. What lies in a result's directory is looked at
before it is read; what was computed is kept until its file changes.
"""

from __future__ import annotations

import asyncio
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.bench.results import Run, read_run
from etude.bench.summary import compare, counts_of, summarise
from etude.errors import ConfigError, EtudeError
from etude.host import beneath
from etude.product.sessions.errors import Refused
from etude.serving.openapi import Operation, answers, parameter
from etude.studio.routes import reply
from etude.studio.runs import RESULTS, Runs

_MOST_BYTES, _MOST_LISTED, _KEPT = 256 << 20, 200, 64
_FILES = (RESULTS, "attempts.jsonl")
_ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of lines that are none of a benchmark's: they may be a stranger's."""


@dataclass(frozen=True)
class BenchRow:
    """A run of a benchmark. `rate` is pass@1, with its 95% interval; None where nothing has a verdict."""

    id: str
    name: str
    directory: str
    policy: str
    tasks: int
    planned: int
    judged: int
    solved: int
    rate: float | None
    low: float
    high: float
    updated_at: float


@dataclass(frozen=True)
class BenchList:
    """The newest first; `unread` are directories that have results which cannot be read, and why."""

    runs: list[BenchRow]
    unread: dict[str, str]


@dataclass(frozen=True)
class Side:
    """One of two."""

    name: str
    rate: float


@dataclass(frozen=True)
class FlippedTask:
    """A task that one solves more often than the other: shares of its attempts."""

    task: str
    first: float
    second: float


@dataclass(frozen=True)
class BenchComparison:
    """The second against the first, on the tasks that both have verdicts on, with a 95% interval of the difference."""

    first: Side
    second: Side
    tasks: int
    left_out: int
    same_harness: bool
    better: list[str]
    worse: list[str]
    alike: int
    difference: float
    low: float
    high: float
    test: str
    p: float
    verdict: str
    said: str
    flipped: list[FlippedTask]


class BenchRoutes:
    """Over the results below the places of one server."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._kept: dict[Path, tuple[Any, Run, BenchRow]] = {}

    @answers(Operation("/api/bench", "get", "Results of `etude bench run` below the given directories",
                       answer=BenchList))  # fmt: skip
    async def listed(self, request: Request) -> Response:
        return reply(await asyncio.to_thread(self._list))

    @answers(
        Operation(
            "/api/bench/compare", "get", "Two of them: paired, with an interval, and the tasks that flipped",
            parameters=(parameter("a"), parameter("b")), answer=BenchComparison,
        )
    )  # fmt: skip
    async def compared(self, request: Request) -> Response:
        a, b = (request.query_params.get(name, "") for name in ("a", "b"))
        return reply(await asyncio.to_thread(self._compare, a, b))

    def _list(self) -> BenchList:
        rows, unread = [], {}
        for id, path in list(self._runs.benches().items())[:_MOST_LISTED]:
            try:
                rows.append(self._read(id, path)[1])
            except (EtudeError, OSError) as error:
                unread[str(path)] = str(error)[:500]
        return BenchList(sorted(rows, key=lambda row: (-row.updated_at, row.id)), unread)

    def _compare(self, a: str, b: str) -> BenchComparison:
        benches = self._runs.benches()
        for name, id in (("a", a), ("b", b)):
            if id not in benches:
                raise Refused("not_found", f"{name}: no result {id[:100]!r}; the list of results has those there are")
        first, second = (self._read(id, benches[id])[0] for id in (a, b))
        try:
            found = compare(first, second)
        except _ODD as error:
            raise ConfigError(f"{a} and {b} cannot be compared: {type(error).__name__}: {error}") from None
        shares = [{task: won / of for task, (won, of) in counts_of(each.attempts).items()} for each in (first, second)]
        differing = (*found["better"], *found["worse"])
        flipped = [FlippedTask(task, *(share[task] for share in shares)) for task in differing]
        told: dict[str, Any] = {**found, "first": Side(**found["first"]), "second": Side(**found["second"])}
        return BenchComparison(**told, flipped=flipped)

    def _read(self, id: str, path: Path) -> tuple[Run, BenchRow]:
        stamps = tuple(_stamp(path, name) for name in _FILES)
        with self._lock:
            kept = self._kept.pop(path, None)
            if kept is None or kept[0] != stamps:
                kept = (stamps, *_loaded(id, path))
            self._kept[path] = kept
            for oldest in list(self._kept)[:-_KEPT]:
                del self._kept[oldest]
        return kept[1], kept[2]


def _stamp(path: Path, name: str) -> tuple[int, float] | None:
    """Of a file that may be read. Raises ConfigError for one that may not."""
    found = beneath.lstat(path, name)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        raise ConfigError(f"{path / name}: is no plain file of at most {_MOST_BYTES >> 20} MiB")
    return found.st_size, found.st_mtime


def _loaded(id: str, path: Path) -> tuple[Run, BenchRow]:
    try:
        run = read_run(path)
        told = summarise(run)
        first = told["pass"]["1"]
        policy = run.head["policy"]
        named = policy.get("model") or policy.get("kind") or "" if isinstance(policy, dict) else ""
        row = BenchRow(
            id, run.name, str(path), str(named), told["tasks"], told["planned"], told["judged"], told["solved"],
            first["rate"], first["low"], first["high"], (path / RESULTS).stat().st_mtime,
        )  # fmt: skip
    except _ODD as error:
        raise ConfigError(f"{path}: cannot be read as a benchmark's results: {type(error).__name__}: {error}") from None
    return run, row

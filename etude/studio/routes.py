"""The routes of the studio about runs: the list, one run, its curves, how it goes on, and the stream of a tab.

Owns the routes, each a few lines over `Runs`, and what all routes of the studio use to read a query. Whatever reads a
disk does so beside the event loop. Nothing here changes anything. The routes of the archive are `archived`'s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from etude import __version__
from etude.archive.writer import ARCHIVE
from etude.config import Config
from etude.errors import ConfigError, EtudeError
from etude.product.sessions.errors import Refused
from etude.serving.openapi import Operation, answers, parameter
from etude.serving.sse import EventStream
from etude.serving.wire import dump, parse_body, whole_number
from etude.studio.archives import Archives
from etude.studio.columns import buckets, flat
from etude.studio.entry import Codes
from etude.studio.live import live_of
from etude.studio.plan import Planner
from etude.studio.run import Run
from etude.studio.runs import RECIPE, SUMMARY, Runs
from etude.studio.shapes import (
    BASE,
    Curves,
    Entered,
    Live,
    NewCode,
    PlanAnswer,
    RunDetail,
    RunList,
    Series,
    Versions,
)
from etude.studio.stream import run_topics, streamed, topics_of
from etude.studio.topic import MakeTopic

ONE = "/api/runs/{run}"
MOST_CURVES = 64
"""That are asked for at once."""
_MOST_RUNS, _MOST_BUCKETS, _MOST_VERSIONS = 10_000, 4000, 1000


def count(name: str, most: int, least: int = 0) -> dict[str, Any]:
    """A whole number of a query, in the document."""
    return parameter(name, type="integer", minimum=least, maximum=most)


class EnterBody(Config):
    """What stands behind the # of the printed address."""

    code: str = Field(min_length=1, max_length=200)


class StreamBody(Config):
    """What a tab wants to be told of."""

    topics: dict[str, str | None] = Field(min_length=1, max_length=64)
    """By their names: `runs`, `run/ID/steps`, `run/ID/live`, `run/ID/trajectories`, `session/ID` and `work`. With each
    the cursor that its last event had as its id; null or empty begins now."""


class RunRoutes:
    """Over the runs of one server."""

    def __init__(
        self,
        runs: Runs,
        archives: Archives,
        codes: Codes,
        token: str,
        work: bool,
        max_streams: int,
        topics: Sequence[MakeTopic] = (),
    ) -> None:
        """`topics` make what can be followed beside runs."""
        self._runs, self._archives, self._codes, self._token = runs, archives, codes, token
        self._work, self._max_streams = work, max_streams
        self._makers = (run_topics(runs, archives), *topics)
        self._planner = Planner()
        self.streams = 0
        self.stopping = asyncio.Event()
        """Set when streams are to end."""

    # --- coming in ----------------------------------------------------------------------------------------------------

    @answers(Operation("/api/enter", "post", "The token, for a code that works once", (), EnterBody, answer=Entered,
                       is_open=True))  # fmt: skip
    async def enter(self, request: Request) -> Response:
        body = parse_body(await request.body(), EnterBody)
        self._codes.use(body.code)
        return reply(Entered(self._token, self._work, __version__))

    @answers(Operation("/api/codes", "post", "A code for one more tab", answer=NewCode, status=201))
    async def code(self, request: Request) -> Response:
        return reply(NewCode(self._codes.new()), 201)

    @answers(Operation("/health", "get", "Whether it serves", ("status", "streams")))
    async def health(self, request: Request) -> Response:
        return reply({"status": "draining" if self.stopping.is_set() else "ok", "streams": self.streams})

    # --- runs ---------------------------------------------------------------------------------------------------------

    @answers(
        Operation(
            "/api/runs", "get", "The runs there are, the newest first; `text` in their names",
            parameters=(count("limit", _MOST_RUNS), parameter("text")), answer=RunList,
        )
    )  # fmt: skip
    async def listed(self, request: Request) -> Response:
        text = request.query_params.get("text", "").lower()
        rows = await asyncio.to_thread(self._runs.rows)
        found = [row for row in rows if text in f"{row.name}\n{row.recipe}\n{row.directory}".lower()]
        limit = number(request, "limit", 1000, _MOST_RUNS)
        return reply(RunList(found[:limit], len(found), self._runs.remarks()))

    @answers(
        Operation(ONE, "get", "A run: its recipe, counts, phases, notes, and what it ended with", answer=RunDetail)
    )
    async def show(self, request: Request) -> Response:
        return reply(await asyncio.to_thread(self._detail, request.path_params["run"]))

    def _detail(self, id: str) -> RunDetail:
        row, run = self._runs.row(id), self._runs.run(id)
        run.refresh()
        summary = run.directory.table(SUMMARY)
        kept = self._kept(run)
        recipe = flat(run.directory.table(RECIPE))
        with run.lock:
            counters = summary.get("counters") or dict(run.counted)
            return RunDetail(
                **asdict(replace(row, trajectories=kept)),
                keys=recipe,
                counters=counters if isinstance(counters, dict) else {},
                summary=summary or None,
                phases=list(run.phases),
                notes=list(run.notes),
            )

    def _kept(self, run: Run) -> int | None:
        """How many trajectories its archive has; None where it has none that can be read."""
        try:
            return self._archives.reader(run).count() if (run.directory.path / ARCHIVE).exists() else None
        except EtudeError:
            return None

    @answers(
        Operation(
            f"{ONE}/curves", "get",
            "Figures of steps in buckets: names apart by commas, at most 64; without names, which there are",
            parameters=(
                parameter("names"), count("buckets", _MOST_BUCKETS, 1), parameter("from", type="number"),
                parameter("to", type="number"),
            ), answer=Curves,
        )
    )  # fmt: skip
    async def curves(self, request: Request) -> Response:
        names = [name for name in request.query_params.get("names", "").split(",") if name]
        if len(names) > MOST_CURVES:
            raise ConfigError(f"names: {len(names)} are too many at once; ask for {MOST_CURVES}, and again")
        bins = max(1, number(request, "buckets", 400, _MOST_BUCKETS))
        begins, ends = real(request, "from", -math.inf), real(request, "to", math.inf)
        run = self._runs.run(request.path_params["run"])
        return reply(await asyncio.to_thread(_curves, run, names, bins, begins, ends))

    @answers(Operation(f"{ONE}/live", "get", "How it goes on now", answer=Live))
    async def live(self, request: Request) -> Response:
        id = request.path_params["run"]
        row = await asyncio.to_thread(self._runs.row, id)
        return reply(await live_of(row, self._runs.run(id)))

    @answers(
        Operation(
            f"{ONE}/versions", "get", "Versions of its weights, `after` one, the oldest first",
            parameters=(count("after", 10**9), count("limit", _MOST_VERSIONS, 1)), answer=Versions,
        )
    )  # fmt: skip
    async def versions(self, request: Request) -> Response:
        run = self._runs.run(request.path_params["run"])
        after = number(request, "after", -1, 10**9) if "after" in request.query_params else -1
        limit = max(1, number(request, "limit", 200, _MOST_VERSIONS))
        return reply(await asyncio.to_thread(_versions, run, after, limit))

    @answers(Operation(f"{ONE}/plan", "get", "What `etude plan` says of its recipe, from its own rates",
                       answer=PlanAnswer))  # fmt: skip
    async def plan(self, request: Request) -> Response:
        return reply(await self._planner.plan(self._runs.run(request.path_params["run"])))

    # --- the stream ---------------------------------------------------------------------------------------------------

    @answers(Operation("/api/stream", "post", "All that a tab wants to be told, from its cursors on", (), StreamBody,
                       answer="events"))  # fmt: skip
    async def stream(self, request: Request) -> Response:
        body = parse_body(await request.body(), StreamBody)
        topics = topics_of(body.topics, self._makers)
        if self.stopping.is_set():
            raise Refused("draining", "this server is stopping; ask again when it is back", retry_after_s=2)
        if self.streams >= self._max_streams:
            said = f"{self.streams} tabs listen, and there is room for no more; close one, or raise max_streams"
            raise Refused("busy", said, retry_after_s=5)
        self.streams += 1
        held = ExitStack()
        held.callback(self._let_go)
        return EventStream(streamed(topics, self.stopping), held)

    def _let_go(self) -> None:
        self.streams -= 1


def _curves(run: Run, names: list[str], bins: int, begins: float, ends: float) -> Curves:
    run.refresh()
    with run.lock:
        known = run.columns.x
        first, last = (float(known[0]), float(known[-1])) if len(known) else (0.0, 0.0)
        low, high = max(begins, min(first, 0.0)), min(ends, last)
        series = {}
        for name in names:
            of = run.delivered if name.startswith("delivery.") else run.columns
            series[name] = Series(**buckets(of.x, of[name], bins, low, high))
        names_known = [*run.columns.names, *run.delivered.names]
        return Curves([first, last] if len(known) else [], names_known, series, run.cursor())


def _versions(run: Run, after: int, limit: int) -> Versions:
    run.refresh()
    with run.lock:
        known = sorted(({0: BASE} | run.versions).items())
    wanted = [row for version, row in known if version > after]
    more = len(wanted) > limit
    return Versions(wanted[:limit], len(known), wanted[limit - 1].version if more else None)


def reply(value: object, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(dump(value), status, media_type="application/json")


def number(request: Request, name: str, otherwise: int, most: int) -> int:
    """A whole number of the query. Raises ConfigError for one that is too large."""
    given = request.query_params.get(name)
    found = otherwise if given is None else whole_number(name, given)
    if found > most:
        raise ConfigError(f"{name}: at most {most}; ask for the rest after that")
    return found


def real(request: Request, name: str, otherwise: float) -> float:
    """A finite number of the query. Raises ConfigError."""
    given = request.query_params.get(name)
    if given is None:
        return otherwise
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or len(given) > 40:
        raise ConfigError(f"{name}: {given[:40]!r} is no number")
    return found

"""The routes of the studio about what a run's archive keeps: trajectories, groups, steps, and notes beside them.

Owns the routes, each a few lines over `Archives`. The ids of trajectories and groups have slashes, which addresses
write as ~. Notes are the only thing that is written, and only where the studio was started with `--work`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from etude.archive.archived import Archived
from etude.archive.notes import MOST_TEXT, Note
from etude.archive.query import HISTOGRAMS, ORDERS, Filter
from etude.archive.reader import MOST_ROWS, ArchiveReader
from etude.config import Config
from etude.errors import ConfigError
from etude.product.sessions.errors import Refused
from etude.serving.openapi import Operation, answers, parameter
from etude.serving.wire import parse_body, whole_number
from etude.studio import trajectory
from etude.studio.archive_shapes import (
    Bins,
    Count,
    DiffAnswer,
    FilePage,
    GroupAnswer,
    OutputAnswer,
    Removed,
    StepAnswer,
    TokenColumns,
    TrajectoryAnswer,
    TrajectoryPage,
    Values,
)
from etude.studio.archives import Archives
from etude.studio.diffs import hunks_of
from etude.studio.groups import group_answer, step_answer
from etude.studio.routes import ONE, count, number, reply
from etude.studio.run import Run
from etude.studio.runs import Runs
from etude.studio.tokens import Texts

T = TypeVar("T")
ALL, EACH = f"{ONE}/trajectories", f"{ONE}/trajectories/{{trajectory}}"
_FILTERS = tuple(field.name for field in fields(Filter))
_MOST = 10**9
_CHOSEN = tuple(parameter(name) for name in _FILTERS)


class NoteBody(Config):
    """A note beside a trajectory."""

    text: str = Field(min_length=1, max_length=MOST_TEXT)
    author: str = Field("", max_length=100)
    event: int | None = Field(None, ge=0, le=_MOST)
    """Beside this event of the log."""
    segment: int | None = Field(None, ge=0, le=_MOST)
    token: int | None = Field(None, ge=0, le=_MOST)
    """Beside this token of the segment."""


class ArchiveRoutes:
    """Over the runs of one server."""

    def __init__(self, runs: Runs, archives: Archives, work: bool) -> None:
        self._runs, self._archives, self._work, self._texts = runs, archives, work, Texts()

    # --- many ---------------------------------------------------------------------------------------------------------

    @answers(
        Operation(
            ALL, "get", "Trajectories in pages. A filter is a word, or a range such as step=3..10",
            parameters=(*_CHOSEN, parameter("order"), parameter("after"), count("limit", MOST_ROWS, 1)),
            answer=TrajectoryPage,
        )
    )  # fmt: skip
    async def listed(self, request: Request) -> Response:
        asked, chosen = request.query_params, _filter(request)
        limit = max(1, number(request, "limit", 100, MOST_ROWS))

        def page(reader: ArchiveReader, run: Run) -> TrajectoryPage:
            found = reader.trajectories(chosen, asked.get("order", "-kept"), asked.get("after") or None, limit)
            return TrajectoryPage(list(found.rows), found.next)

        return reply(await self._read(request, page))

    @answers(Operation(f"{ALL}/count", "get", "How many there are", parameters=_CHOSEN, answer=Count))
    async def counted(self, request: Request) -> Response:
        chosen = _filter(request)

        def counted(reader: ArchiveReader, run: Run) -> Count:
            filling = self._archives.is_filling(run)  # asked first: when it says no, all are counted
            return Count(reader.count(chosen), filling)

        return reply(await self._read(request, counted))

    @answers(
        Operation(
            f"{ALL}/histogram", "get", f"How a field is spread: {', '.join(HISTOGRAMS)}",
            parameters=(*_CHOSEN, parameter("field"), count("bins", 1000, 1)), answer=Bins,
        )
    )  # fmt: skip
    async def histogram(self, request: Request) -> Response:
        chosen, field = _filter(request), request.query_params.get("field", "reward")
        bins = max(1, number(request, "bins", 40, 1000))

        def spread(reader: ArchiveReader, run: Run) -> Bins:
            found = reader.histogram(chosen, field, bins)
            return Bins(list(found.edges), list(found.counts), list(found.solved))

        return reply(await self._read(request, spread))

    @answers(Operation(f"{ALL}/values", "get", "What there is to filter and order by", answer=Values))
    async def values(self, request: Request) -> Response:
        def all_values(reader: ArchiveReader, run: Run) -> Values:
            tasks = dict(list(reader.values("task_id").items())[:500])
            known = {name: reader.values(name) for name in ("outcome", "tool", "phase", "dropped")}
            return Values(task=tasks, orders=list(ORDERS), histograms=list(HISTOGRAMS), **known)

        return reply(await self._read(request, all_values))

    @answers(Operation(f"{ONE}/groups/{{group}}", "get", "A group: its members, and where they part ways",
                       answer=GroupAnswer))  # fmt: skip
    async def group(self, request: Request) -> Response:
        def whole(reader: ArchiveReader, run: Run) -> GroupAnswer:
            id = _id(request, "group")
            found = reader.group(id)
            if found is None:
                raise Refused("not_found", f"group {id[:100]}: the archive has none of that name")
            return group_answer(reader, found)

        return reply(await self._read(request, whole))

    @answers(
        Operation(
            f"{ONE}/steps/{{step}}", "get", "A step: its line, its groups, and when they were played",
            parameters=(parameter("step", "path", type="integer", minimum=0, maximum=_MOST),), answer=StepAnswer,
        )
    )  # fmt: skip
    async def step(self, request: Request) -> Response:
        step = whole_number("step", request.path_params["step"])

        def whole(reader: ArchiveReader, run: Run) -> StepAnswer:
            run.refresh()
            line = run.step_line(step)
            if line is None:
                raise Refused("not_found", f"step {step}: this run has made none of that number")
            found = step_answer(reader, step, line)
            if not found.lanes and self._archives.is_filling(run):
                raise Refused("not_found", f"step {step}: the archive has none of its rollouts")
            return found

        return reply(await self._read(request, whole))

    # --- one ----------------------------------------------------------------------------------------------------------

    @answers(
        Operation(
            EACH, "get", "A trajectory: its task, turns, outcome and changed files; turns=FROM,COUNT",
            parameters=(parameter("turns"),), answer=TrajectoryAnswer,
        )
    )  # fmt: skip
    async def show(self, request: Request) -> Response:
        begins, _, many = request.query_params.get("turns", "0,100").partition(",")
        first = min(whole_number("turns", begins), _MOST)
        most = min(whole_number("turns", many or "100"), trajectory.MOST_TURNS)

        def whole(reader: ArchiveReader, run: Run) -> TrajectoryAnswer:
            found = _found(reader, request)
            return trajectory.answer_of(found, reader.annotations(found.row.id), first, most)

        return reply(await self._read(request, whole))

    @answers(
        Operation(
            f"{EACH}/tokens", "get", "Tokens of a segment in columns",
            parameters=(count("segment", _MOST), count("from", _MOST), count("count", trajectory.MOST_TOKENS, 1)),
            answer=TokenColumns,
        )
    )  # fmt: skip
    async def tokens(self, request: Request) -> Response:
        segment, first = number(request, "segment", 0, _MOST), number(request, "from", 0, _MOST)
        most = max(1, number(request, "count", 2000, trajectory.MOST_TOKENS))

        def columns(reader: ArchiveReader, run: Run) -> TokenColumns:
            found = trajectory.columns_of(
                _found(reader, request), segment, first, most, lambda ids: self._texts.of(run, ids)
            )
            if found is None:
                raise Refused("not_found", f"segment {segment}: it has none of that number, counted from 0")
            return found

        return reply(await self._read(request, columns))

    @answers(
        Operation(
            f"{EACH}/files", "get", "Files that it changed, from the number `after` on",
            parameters=(count("after", _MOST), count("limit", 500, 1)), answer=FilePage,
        )
    )  # fmt: skip
    async def files(self, request: Request) -> Response:
        after, limit = number(request, "after", 0, _MOST), max(1, number(request, "limit", 200, 500))
        return reply(
            await self._read(request, lambda reader, run: trajectory.files_of(_found(reader, request), after, limit))
        )

    @answers(Operation(f"{EACH}/diff", "get", "What it changed in a file", parameters=(parameter("path"),),
                       answer=DiffAnswer))  # fmt: skip
    async def diff(self, request: Request) -> Response:
        path = request.query_params.get("path", "")

        def difference(reader: ArchiveReader, run: Run) -> DiffAnswer:
            changed = [each for each in _found(reader, request).files if each.path == path]
            if not changed:
                raise Refused("not_found", f"path {path[:200]!r}: it changed no file of that name")
            return hunks_of(changed[0])

        return reply(await self._read(request, difference))

    @answers(
        Operation(
            f"{EACH}/output", "get", "Part of a call's result, by its event; of the verifier's output without one",
            parameters=(count("event", _MOST), count("from", _MOST), count("count", trajectory.MOST_CHARS, 1)),
            answer=OutputAnswer,
        )
    )  # fmt: skip
    async def output(self, request: Request) -> Response:
        event = number(request, "event", 0, _MOST) if "event" in request.query_params else None
        first = number(request, "from", 0, _MOST)
        most = max(1, number(request, "count", 50_000, trajectory.MOST_CHARS))

        def part(reader: ArchiveReader, run: Run) -> OutputAnswer:
            found = trajectory.output_of(_found(reader, request), event, first, most)
            if found is None:
                raise Refused("not_found", f"event {event}: no call with a result has that number in the log")
            return found

        return reply(await self._read(request, part))

    # --- notes --------------------------------------------------------------------------------------------------------

    @answers(Operation(f"{EACH}/annotations", "post", "A note beside it", (), NoteBody, answer=Note, status=201))
    async def annotate(self, request: Request) -> Response:
        body = parse_body(await request.body(), NoteBody)
        self._writable(request)
        place = {name: value for name in ("event", "segment", "token") if (value := getattr(body, name)) is not None}

        def noted(reader: ArchiveReader, run: Run) -> Note:
            return reader.annotate(_found(reader, request).row.id, body.text, body.author, place)

        return reply(await self._read(request, noted), 201)

    @answers(Operation(f"{EACH}/annotations/{{note}}", "delete", "Take a note away", answer=Removed))
    async def forget(self, request: Request) -> Response:
        self._writable(request)
        note = request.path_params["note"]

        def removed(reader: ArchiveReader, run: Run) -> Removed:
            if note not in {each.id for each in reader.annotations(_found(reader, request).row.id)}:
                raise Refused("not_found", f"note {note[:100]}: there is none beside this trajectory")
            reader.remove_note(note)
            return Removed(note)

        return reply(await self._read(request, removed))

    def _writable(self, request: Request) -> None:
        if not self._work:
            raise Refused("forbidden", "this studio only reads; start it with --work to write notes")
        if (row := self._runs.stored(request.path_params["run"])) is not None:
            said = f"{row.directory} is read from a store; notes are written where the run's own directory is"
            raise Refused("conflict", said)

    async def _read(self, request: Request, read: Callable[[ArchiveReader, Run], T]) -> T:
        """What a reader says of the run that the request names, beside the event loop."""
        run = self._runs.run(request.path_params["run"])
        try:
            return await asyncio.to_thread(lambda: read(self._archives.reader(run), run))
        except Refused as error:
            if error.kind != "not_found" or not self._archives.is_filling(run):
                raise
            said = f"{error} by now; its index is being filled, so ask again in a while"
            raise Refused("busy", said, retry_after_s=5) from None


def _filter(request: Request) -> Filter:
    given = {name: value for name, value in request.query_params.items() if name in _FILTERS}
    if longest := [name for name, value in given.items() if len(value) > 1000]:
        raise ConfigError(f"{longest[0]}: at most 1,000 characters")
    return Filter.of(given)


def _id(request: Request, name: str) -> str:
    return request.path_params[name].replace("~", "/")


def _found(reader: ArchiveReader, request: Request) -> Archived:
    id = _id(request, "trajectory")
    found = reader.trajectory(id)
    if found is None:
        raise Refused("not_found", f"trajectory {id[:100]}: the archive has none of that name")
    return found

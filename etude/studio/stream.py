"""One stream a tab, of as many topics as it wants, that goes on where it was cut.

Owns `streamed` and the topics of runs. Nothing is queued for a listener: each topic of each stream has a cursor, and is
asked a few times a second what came after it, of what the server has read once for all; so a slow client holds back
nobody, and gets what is left out by then as a whole. The id of an event is its topic's cursor after it. Whoever comes
back with its cursors, to this process or to the next, loses nothing and is told nothing twice.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog

from etude.errors import ConfigError, EtudeError
from etude.product.sessions.errors import Refused
from etude.serving.wire import bug, dump
from etude.studio.archives import Archives
from etude.studio.live import live_of
from etude.studio.run import Run
from etude.studio.runs import Runs
from etude.studio.shapes import RunRow
from etude.studio.topic import AT_ONCE, LOOK_S, MakeTopic, Told, Topic

_log = structlog.get_logger("studio")
_RETRY_MS = 1000
KNOWN = "runs, run/ID/steps, run/ID/live, run/ID/trajectories, session/ID and work"


class StepsTopic(Topic):
    """The steps of a run as they are made."""

    def __init__(self, run: Run, cursor: str | None) -> None:
        super().__init__(cursor)
        self._run, self._cuts = run, 0

    async def open(self) -> Told:
        await asyncio.to_thread(self._run.refresh)
        self._cuts = len(self._run.cuts)
        known = self.cursor is not None and self._run.place_after(self.cursor) is not None
        lost = self.cursor is not None and not known
        if not known:
            self.cursor = self._run.cursor()
        return [(self.cursor or "", {"reset": True} if lost else {"opened": True})]

    async def new(self) -> Told:
        run = self._run
        await asyncio.to_thread(run.refresh)
        with run.lock:
            told = self._cut()
            at = run.place_after(self.cursor or "0.0")
            if at is None:  # of a file that says something else by now, which was not seen to be replaced
                self.cursor = run.cursor()
                return [*told, (self.cursor, {"reset": True})]
            for place in range(at, min(run.columns.rows, at + AT_ONCE)):
                told.append((run.cursor(place), {"step": asdict(run.figures(place))}))
        return told

    def _cut(self) -> Told:
        """Steps that were told, and were taken back since."""
        agreed = min(self._run.cuts[self._cuts :], default=None)
        self._cuts = len(self._run.cuts)
        if agreed is None or agreed >= int((self.cursor or "0").partition(".")[0]):
            return []
        at = int(self._run.columns.x.searchsorted(agreed))
        self.cursor = self._run.cursor(at) if agreed else "0.0"
        return [(self.cursor, {"cut": agreed})]


class LiveTopic(Topic):
    """How things stand in a run; told when they change. Its cursor says nothing: how they stood is gone."""

    every_s = 2 * LOOK_S

    def __init__(self, runs: Runs, run: Run) -> None:
        super().__init__(None)
        self._runs, self._run, self._last = runs, run, b""

    async def open(self) -> Told:
        return [("", {"opened": True})]

    async def new(self) -> Told:
        row = await asyncio.to_thread(self._runs.row, self._run.id)
        live = asdict(await live_of(row, self._run))
        seen = dump({**live, "at": 0})
        if seen == self._last:
            return []
        self._last = seen
        return [("", {"live": live})]


class RunsTopic(Topic):
    """The list of runs. Its cursor is a mark of the whole list: who comes back with another is told all of it."""

    every_s = 4 * LOOK_S

    def __init__(self, runs: Runs, cursor: str | None) -> None:
        super().__init__(cursor)
        self._runs = runs
        self._rows: dict[str, RunRow] = {}
        self._remarks: list[str] = []

    async def open(self) -> Told:
        rows = await asyncio.to_thread(self._runs.rows)
        self._rows, self._remarks = {row.id: row for row in rows}, self._runs.remarks()
        before, self.cursor = self.cursor, _mark(rows, self._remarks)
        if before == self.cursor:
            return [(self.cursor, {"opened": True})]
        return [(self.cursor, {"runs": [asdict(row) for row in rows], "remarks": self._remarks})]

    async def new(self) -> Told:
        rows, remarks = await asyncio.to_thread(self._runs.rows), self._runs.remarks()
        now = {row.id: row for row in rows}
        changed = [row for row in rows if self._rows.get(row.id) != row]
        gone = [id for id in self._rows if id not in now]
        if not changed and not gone and remarks == self._remarks:
            return []
        self._rows, self._remarks, self.cursor = now, remarks, _mark(rows, remarks)
        return [(self.cursor, {"changed": [asdict(row) for row in changed], "gone": gone, "remarks": remarks})]


class TrajectoriesTopic(Topic):
    """The rows of a run's archive as they are kept, marked and dropped."""

    every_s = 4 * LOOK_S

    def __init__(self, archives: Archives, run: Run, cursor: str | None) -> None:
        super().__init__(cursor)
        self._archives, self._run = archives, run

    async def open(self) -> Told:
        if self.cursor is None:
            self.cursor = await asyncio.to_thread(lambda: self._archives.reader(self._run).newest())
        return [(self.cursor, {"opened": True})]

    async def new(self) -> Told:
        found = await asyncio.to_thread(lambda: self._archives.reader(self._run).changes(self.cursor, AT_ONCE))
        if not found.rows and not found.anew:
            return []
        return [(found.cursor, {"rows": [asdict(row) for row in found.rows], "anew": found.anew})]


def _mark(rows: Iterable[RunRow], remarks: Sequence[str]) -> str:
    return f"{zlib.crc32(repr((sorted(map(repr, rows)), remarks)).encode()):08x}"


def run_topics(runs: Runs, archives: Archives) -> MakeTopic:
    """Those of runs."""

    def made(parts: Sequence[str], cursor: str | None) -> Topic | None:
        match parts:
            case ["runs"]:
                return RunsTopic(runs, cursor)
            case ["run", id, "steps"]:
                return StepsTopic(runs.run(id), _cursor_of_steps(cursor))
            case ["run", id, "live"]:
                return LiveTopic(runs, runs.run(id))
            case ["run", id, "trajectories"]:
                return TrajectoriesTopic(archives, runs.run(id), _cursor_of_archive(cursor))
        return None

    return made


class GoneTopic(Topic):
    """Of a run or a session that is not there: its listener is told so, and goes on with all others."""

    def __init__(self, why: Refused) -> None:
        super().__init__(None)
        self.why = why

    async def open(self) -> Told:
        raise self.why

    async def new(self) -> Told:
        raise self.why


def topics_of(asked: Mapping[str, str | None], makers: Sequence[MakeTopic]) -> dict[str, Topic]:
    """By their names. Raises ConfigError for a name that is none, Refused where none of them is there any more."""
    found = {name: _topic_of(name, cursor, makers) for name, cursor in asked.items()}
    gone = [topic.why for topic in found.values() if isinstance(topic, GoneTopic)]
    if gone and len(gone) == len(found):
        raise gone[0]
    return found


def _topic_of(name: str, cursor: str | None, makers: Sequence[MakeTopic]) -> Topic:
    try:
        made = (topic for make in makers if (topic := make(name.split("/"), cursor or None)) is not None)
        if (topic := next(made, None)) is not None:
            return topic
    except Refused as error:
        return GoneTopic(error)
    raise ConfigError(f"topics: no topic {name[:100]!r}; there are {KNOWN}")


def _cursor_of_steps(cursor: str | None) -> str | None:
    """The same, for what is sent back is a line of the stream."""
    if cursor is not None and not re.fullmatch(r"[0-9]{1,15}\.[0-9a-f]{1,8}", cursor):
        raise ConfigError(f"topics: {cursor[:40]!r} is no cursor of steps; take the last event's id")
    return cursor


def _cursor_of_archive(cursor: str | None) -> str | None:
    """Sent back as the id of an event, before the archive has looked at it."""
    if cursor is not None and not re.fullmatch(r"[0-9a-f]{1,40}\.[0-9]{1,15}", cursor):
        raise ConfigError(f"topics: {cursor[:40]!r} is no cursor of trajectories; take the last event's id")
    return cursor


async def streamed(topics: Mapping[str, Topic], stopping: asyncio.Event) -> AsyncGenerator[bytes]:
    """The events of all topics as they come, until the server stops."""
    yield b"retry: %d\n\n" % _RETRY_MS
    loop = asyncio.get_running_loop()
    due: dict[str, float] = {}
    failed: dict[str, str] = {}
    ended = asyncio.ensure_future(stopping.wait())
    try:
        while not ended.done():
            for name, topic in topics.items():
                if due.get(name, 0.0) > loop.time():
                    continue
                told, said = await _asked(topic, name not in due, failed.get(name))
                if said is None or said != failed.get(name):
                    for cursor, data in told:
                        yield _event(name, cursor, data)
                        topic.cursor = cursor or topic.cursor
                failed = {**failed, name: said} if said else {key: why for key, why in failed.items() if key != name}
                if name in due or not said:
                    due[name] = loop.time() + (0.0 if len(told) >= AT_ONCE else topic.every_s)
            wait_s = min(due.values(), default=loop.time() + LOOK_S) - loop.time()
            await asyncio.wait({ended}, timeout=max(0.0, min(wait_s, LOOK_S)))
    finally:
        ended.cancel()
        for topic in topics.values():
            topic.close()


async def _asked(topic: Topic, first: bool, before: str | None) -> tuple[Told, str | None]:
    """What a topic tells; where it cannot, why, which may be what it was `before`."""
    try:
        return (await topic.open() if first else await topic.new()), None
    except (EtudeError, OSError) as error:
        return [("", {"failed": str(error)[:500]})], str(error)
    except Exception as error:  # of this topic alone: the tab's others go on
        if bug(error) != before:
            _log.exception("bug", topic=type(topic).__name__)
        return [("", {"failed": bug(error)})], bug(error)


def _event(topic: str, cursor: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\nid: %s\ndata: %s\n\n" % (topic.encode(), cursor.encode(), dump(data))

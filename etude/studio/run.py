"""One run, as the files in its directory tell of it.

Owns `Run`: what its metrics say, read once and from there on by what is added, so that a run of ten thousand steps
costs no more than its new lines. A run that is resumed takes steps back that were not saved: `cuts` says which. Safe to
use from several threads; whoever reads the disk is told so by the name (`refresh`). Never writes.
"""

from __future__ import annotations

import json
import threading
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from etude.host import beneath
from etude.studio.columns import Columns, figures_of
from etude.studio.files import LONGEST_LINE, Directory, Tail, shallow
from etude.studio.shapes import Delivery, Phase, RunNote, StepFigures, VersionRow

METRICS = "metrics.jsonl"
_NOT_FIGURES = ("kind", "at", "step", "groups", "version")
_NOTED = ("restart", "change", "engines", "replaced", "quarantined", "findings", "control", "evaluation")
_KEPT_NOTES = 200
_KEPT_VERSIONS = 100_000
_LAST_BYTES = 1 << 18
_MOST_STEP = 10**12
_OF_DELIVERY = ("changed_share", "publish_ms", "pause_ms", "lag_ms")
_ROLLOUT, _ENGINE = b'{"kind": "rollout"', b'{"kind": "engine"'


class Run:
    """Of one directory, known by `id`."""

    def __init__(self, id: str, directory: Directory, stopping: threading.Event | None = None) -> None:
        """Once it is `stopping`, no more is read: of a long run that takes minutes."""
        self.id, self.directory, self._stopping = id, directory, stopping or threading.Event()
        self.lock = threading.RLock()
        self._tail = Tail(directory, METRICS)
        self.cuts: list[int] = []
        """For each time that the file was replaced: the step up to which it says what it said before."""
        self._clear()

    def _clear(self) -> None:
        self.columns, self.delivered = Columns(), Columns()
        self.marks, self._offsets, self.times = array("Q"), array("Q"), array("d")
        self.versions: dict[int, VersionRow] = {}
        self.phases: list[Phase] = []
        self.notes: deque[RunNote] = deque(maxlen=_KEPT_NOTES)
        self.failures: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.ages: Counter[str] = Counter()
        self.started_at: float | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Take in what the disk has more than at the last call."""
        with self.lock:
            more = True
            while more:
                piece = self._tail.read()
                if piece.anew:
                    self._replaced(piece.lines)
                else:
                    self._take(piece.lines)
                more = piece.more and not self._stopping.is_set()

    def _replaced(self, lines: list[tuple[int, bytes]]) -> None:
        """The file is another. Its first lines are compared with those that were read when all of them are here."""
        before, steps = list(self.marks), self.columns.x.copy()
        self._clear()
        self._take(lines)
        while (piece := self._tail.read()).lines and not piece.anew and not self._stopping.is_set():
            self._take(piece.lines)
        if piece.anew:
            self._replaced(piece.lines)
            return
        if before:
            agreed = 0
            for mark, step, now in zip(before, steps, self.marks, strict=False):
                if mark != now:
                    break
                agreed = int(step)
            if agreed < int(steps[-1]):
                self.cuts.append(agreed)

    def _take(self, lines: list[tuple[int, bytes]]) -> None:
        for offset, line in lines:
            if line.startswith(_ENGINE):
                continue
            if line.startswith(_ROLLOUT):
                self.counted["rollouts"] += 1
                if b'"failed"' not in line:  # there are a hundred of these for each step
                    continue
            try:
                row = json.loads(line)
                if isinstance(row, dict):
                    self._line(row, offset)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue  # cut, or no line of a run's

    def _line(self, row: dict[str, Any], offset: int) -> None:
        kind, at = row.get("kind"), row.get("at")
        at = _real(at)
        self.started_at = at if self.started_at is None else self.started_at
        if kind == "step":
            self._step(row, offset, at)
        elif kind == "delivery":
            self._delivery(row, at)
        elif kind == "rollout":
            self.failures[str(row["failed"])[:200]] += 1
        elif kind == "phase" and at is not None:
            self.phases.append(Phase(str(row["name"])[:200], at))
        elif kind in _NOTED:
            self.counted[kind] += 1
            self.notes.append(RunNote(kind, at, shallow({k: v for k, v in row.items() if k not in ("kind", "at")})))

    def _step(self, row: dict[str, Any], offset: int, at: float | None) -> None:
        step = int(row["step"])
        if not 0 < step < _MOST_STEP:
            return
        if self.columns.rows and step <= self.columns.x[-1]:
            return  # a line of a life that was not taken back yet
        self.columns.add(step, figures_of(row, _NOT_FIGURES))
        said = (step, row.get("version"), row.get("elapsed_s"), row.get("loss"), row.get("reward"))
        self.marks.append(zlib.crc32(repr(said).encode()))
        self._offsets.append(offset)
        self.times.append(at or 0.0)
        self.ages.update({str(age): int(count) for age, count in row.get("age_tokens", {}).items()})

    def _delivery(self, row: dict[str, Any], at: float | None) -> None:
        version = int(row["version"])
        if not 0 <= version < _MOST_STEP or (self.delivered.rows and version <= self.delivered.x[-1]):
            return
        self.delivered.add(version, figures_of(row, _NOT_FIGURES, "delivery."))
        if len(self.versions) < _KEPT_VERSIONS:
            swaps = row.get("engines", {})
            engines = [Delivery(str(name)[:200], at, _real(pause) or 0.0) for name, pause in swaps.items()]
            size, raw = (_whole(row.get(name)) for name in ("delta_bytes", "raw_bytes"))
            share, publish, pause, lag = (_real(row.get(name)) for name in _OF_DELIVERY)
            kind, root = "delta" if version else "base", row.get("root")
            root = str(root)[:200] if root else None
            self.versions[version] = VersionRow(
                version, version, size, raw, share, kind, root, at, publish, pause, lag, engines
            )

    # --- what was read ------------------------------------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        with self.lock:
            return int(self.columns.x[-1]) if self.columns.rows else 0

    def cursor(self, at: int = -1) -> str:
        """Of a step by its place: its number, and a mark of what was said of it."""
        with self.lock:
            return f"{int(self.columns.x[at])}.{self.marks[at]:08x}" if self.columns.rows else "0.0"

    def place_after(self, cursor: str) -> int | None:
        """The place of the first step after a cursor; None where its step is not what it was, or is not there."""
        number, _, _ = cursor.partition(".")
        with self.lock:
            if not number.isascii() or not number.isdigit() or len(number) > 12:
                return None
            if int(number) == 0:
                return 0
            at = int(self.columns.x.searchsorted(int(number)))
            return at + 1 if at < self.columns.rows and self.cursor(at) == cursor else None

    def figures(self, at: int) -> StepFigures:
        """Of the step at a place."""
        with self.lock:
            found = {name: float(self.columns[name][at]) for name in self.columns.names}
            known = {name: value for name, value in found.items() if value == value}
            return StepFigures(int(self.columns.x[at]), self.times[at] or None, known)

    def step_line(self, step: int) -> dict[str, Any] | None:
        """The whole line of a step, from the disk; None where there is none."""
        with self.lock:
            at = int(self.columns.x.searchsorted(step))
            if at >= self.columns.rows or int(self.columns.x[at]) != step:
                return None
            offset = self._offsets[at]
        try:
            data, _ = beneath.piece(self.directory.path, METRICS, offset, LONGEST_LINE)
            row = json.loads(data.partition(b"\n")[0])
        except (OSError, ValueError, RecursionError):
            return None
        return shallow(row) if isinstance(row, dict) and row.get("step") == step else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _whole(value: Any) -> int | None:
    return None if (found := _real(value)) is None else int(found)


def last_step_of(directory: Directory) -> Mapping[str, Any]:
    """The last step's line, of a run that nobody has looked into yet; empty where the end of the file has none."""
    for line in reversed(directory.last(METRICS, _LAST_BYTES)):
        if line.startswith(b'{"kind": "step"'):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                return row
    return {}

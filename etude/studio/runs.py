"""The runs there are: found in directories, again and again, and looked into when somebody asks.

Owns `Runs`: which directories below the places that the studio was started with hold a run or a result of a benchmark,
the row that the list has of each, and its state. No link is followed below a place. What a scan costs decides how soon
the next may be, so that ten thousand runs keep the server no busier than one. Runs in object stores stand beside them:
what brings these is `mirror`'s. Writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from etude.host import beneath
from etude.product.sessions.errors import Refused
from etude.studio.columns import figures_of
from etude.studio.files import Directory, Entry
from etude.studio.run import METRICS, Run, last_step_of
from etude.studio.shapes import RunRow, RunState

RECIPE, SUMMARY, LOCK, RESULTS = "recipe.json", "summary.json", "run.lock", "results.jsonl"
_DEEPEST, _MOST_ENTRIES = 3, 200_000
_LEAST_S, _SHARE = 1.0, 20.0
"""A scan is at most so old, or so many times as old as it took."""
_SHOWN = ("solve_rate", "reward", "loss", "entropy", "mean_age")
_OF_SUMMARY = ("base_pass1", "pass1")
_MOST_OPEN = 64
"""Runs whose metrics are kept in memory; who was asked for longest ago is read again when it is asked for."""


class StoreOfRuns(Protocol):
    """Of one store: what `mirror.Mirror` knows of it, at once."""

    def rows(self) -> list[RunRow]:
        """Of its runs."""
        ...

    def remarks(self) -> list[str]:
        """Why these may be old, or not be all."""
        ...

    def row(self, id: str) -> RunRow | None:
        """One of them."""
        ...

    def wanted(self, id: str) -> Path | None:
        """Where the files of one are, or will be: somebody looks at it."""
        ...


class Runs:
    """Below some places, each of which is a run or holds runs; and those of some stores."""

    def __init__(self, places: Sequence[Path], stores: Sequence[StoreOfRuns] = ()) -> None:
        self._places, self._stores = tuple(place.absolute() for place in places), tuple(stores)
        self._lock = threading.Lock()
        self._rows: dict[str, RunRow] = {}
        self._known: dict[str, tuple[object, RunRow]] = {}
        self._paths: dict[str, Path] = {}
        self._open: dict[str, Run] = {}
        self._benches: dict[str, Path] = {}
        self._scanned_at, self._took_s = -1e9, 0.0
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Who reads a long run ends soon."""
        self._stopping.set()

    # --- what there is ------------------------------------------------------------------------------------------------

    def rows(self, most_age_s: float = _LEAST_S) -> list[RunRow]:
        """Of all runs, the newest first. From the disk, unless that was looked at lately."""
        self._scan(most_age_s)
        rows = [*self._rows.values(), *(row for store in self._stores for row in store.rows())]
        return sorted(rows, key=lambda row: (-row.updated_at, row.id))

    def remarks(self) -> list[str]:
        """Why the list may be old, or not be all."""
        return [remark for store in self._stores for remark in store.remarks()]

    def row(self, id: str) -> RunRow:
        """One run's, as it is now. Raises Refused for one that is not there."""
        if (stored := self.stored(id)) is not None:
            return stored
        path = self._path(id)
        row = self._row(id, path)
        if row is None:
            raise Refused("not_found", f"run {id}: its directory is gone; the list of runs has those there are")
        return row

    def run(self, id: str) -> Run:
        """What its files say. Raises Refused for one that is not there."""
        path = self._path(id)
        with self._lock:
            run = self._open.pop(id, None) or Run(id, Directory(path), self._stopping)
            self._open[id] = run  # the last
            for oldest in list(self._open)[:-_MOST_OPEN]:
                del self._open[oldest]
        return run

    def stored(self, id: str) -> RunRow | None:
        """The row of a run that is in a store, and here for reading alone; None of any other."""
        return next((row for store in self._stores if (row := store.row(id)) is not None), None)

    def benches(self) -> dict[str, Path]:
        """The directories of results of benchmarks, by their ids."""
        self._scan(_LEAST_S)
        return dict(self._benches)

    def _path(self, id: str) -> Path:
        if (
            stored := next((path for store in self._stores if (path := store.wanted(id)) is not None), None)
        ) is not None:
            return stored
        if id not in self._paths:
            self._scan(0.0 if len(self._paths) < 1000 else _LEAST_S)
        if id not in self._paths:
            raise Refused("not_found", f"run {id[:100]}: there is none; the list of runs has those there are")
        return self._paths[id]

    # --- looking ------------------------------------------------------------------------------------------------------

    def _scan(self, most_age_s: float) -> None:
        with self._lock:
            began = time.monotonic()
            if began - self._scanned_at < max(most_age_s, _SHARE * self._took_s):
                return
            paths, benches = {}, {}
            for path, names in self._directories():
                if RECIPE in names:
                    paths[id_of(path)] = path
                if RESULTS in names:
                    benches[id_of(path)] = path
            found = {id: row for id, path in paths.items() if (row := self._row(id, path))}
            self._rows, self._paths, self._benches = found, paths, benches
            self._known = {id: known for id, known in self._known.items() if id in paths}
            self._scanned_at, self._took_s = time.monotonic(), time.monotonic() - began

    def _directories(self) -> Iterator[tuple[Path, set[str]]]:
        """All that may be a run, and the names of their files; a run's own directories are not gone into."""
        left = _MOST_ENTRIES
        for place in self._places:
            waiting = [("", 0)]
            while waiting and left > 0:
                here, depth = waiting.pop()
                try:
                    with beneath.opened(place, here) as handle, os.scandir(handle) as listed:
                        some = itertools.islice(listed, left)
                        entries = [(each.name, each.is_dir(follow_symlinks=False)) for each in some]
                except OSError:
                    continue  # gone, or not ours to look into
                left -= 1 + len(entries)
                names = {name for name, is_folder in entries if not is_folder}
                yield place / here if here else place, names
                if depth < _DEEPEST and RECIPE not in names and RESULTS not in names:
                    folders = sorted(
                        (name for name, is_folder in entries if is_folder and name[0] != "."), reverse=True
                    )
                    waiting += [(f"{here}/{name}".lstrip("/"), depth + 1) for name in folders]

    def _row(self, id: str, path: Path) -> RunRow | None:
        directory = Directory(path)
        entries = directory.entries()
        if RECIPE not in entries:
            return None
        state = _state_of(directory, entries)
        signature = (state, tuple(sorted((name, each.size, each.mtime) for name, each in entries.items())))
        before = self._known.get(id)
        if before is not None and before[0] == signature:
            return before[1]
        row = _row_of(id, directory, entries, state)
        self._known[id] = (signature, row)
        return row


def id_of(path: Path) -> str:
    """Of a directory: its name, as far as it is letters and digits, and a mark of its whole path."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name).strip("-.")[:60] or "run"
    return f"{name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _state_of(directory: Directory, entries: Mapping[str, Entry]) -> RunState:
    if SUMMARY in entries:
        return "ended"
    if LOCK not in entries:
        return "copied" if METRICS in entries else "stopped"
    if directory.is_held(LOCK):
        return "running"
    made = directory.table(LOCK)
    here = {"host": socket.gethostname(), "inode": entries[LOCK].inode}
    return "stopped" if not made or made == here else "copied"


def _row_of(id: str, directory: Directory, entries: Mapping[str, Entry], state: RunState) -> RunRow:
    recipe, summary = directory.table(RECIPE), directory.table(SUMMARY) if SUMMARY in entries else {}
    line = last_step_of(directory)
    last = figures_of({name: line[name] for name in _SHOWN if name in line})
    last |= figures_of({name: summary[name] for name in _OF_SUMMARY if name in summary})
    return RunRow(
        id=id,
        name=directory.path.name,
        recipe=str(recipe.get("name", ""))[:200],
        directory=str(directory.path),
        state=state,
        started_at=_begin_of(directory) or entries[RECIPE].mtime,
        updated_at=max(each.mtime for each in entries.values()),
        steps=_count(line.get("step", summary.get("steps"))),
        version=_count(line.get("version", summary.get("steps"))),
        figures={name: last.get(name) for name in (*_SHOWN, *_OF_SUMMARY)},
        trajectories=None,
        bytes=sum(each.size for each in entries.values()),
        remark=None,
    )


def _begin_of(directory: Directory) -> float | None:
    """When the first line of its metrics was written."""
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        data, _ = beneath.piece(directory.path, METRICS, 0, 1 << 14)
        at = json.loads(data.partition(b"\n")[0]).get("at")
        return float(at) if isinstance(at, int | float) and 0 < at < 1e12 else None
    return None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e15 else 0

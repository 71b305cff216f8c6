"""An object store of runs, and what of it is on this machine.

Owns `Mirror`: the rows of the runs that a store has (`stored`), and a directory in which the files of those that
somebody looks at come to lie, as they lay in the run's own. One thread asks the store, and only while somebody looks;
who asks for a row or a path never waits for it. What came is checked against its hash; what is here already is not
asked for again, after a restart neither. The directory (`mirrored`) has a bound: runs that were looked at longest ago
go first, and of one archive that is larger its oldest chunks are not brought.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from etude.errors import CheckpointError, DeadlineExceeded, EtudeError, WeightError
from etude.host.home import mirror_directory
from etude.studio.mirrored import Place
from etude.studio.shapes import RunRow
from etude.studio.stored import (
    MOST_STORED,
    NAME,
    PIECE,
    STORED,
    Piece,
    Stored,
    decoded,
    hash_of,
    piece_key,
)
from etude.weights.store import PARALLEL, MissingObject, Patience, Store

PATIENCE = Patience(deadline_s=10.0, silence_s=5.0)
"""A store that does not answer for so long is told of on the page."""
LOOK_S = 5.0
"""Between two looks at the store."""
_MOST_RUNS, _MOST_WANTED = 1000, 8
_log = structlog.get_logger("studio")


class Mirror:
    """Of one store. Use it from any thread; `close` ends its own."""

    def __init__(self, store: Store, most_bytes: int, home: Path | None = None) -> None:
        """`home` has a directory for each store; None: in the user's cache."""
        self.address, self._store, self._most_bytes = store.url.rstrip("/"), store, most_bytes
        self._place = Place(home or mirror_directory(), self.address)
        self._faults = [f"{self.address}: it is being asked which runs there are"]
        self._lock = threading.Lock()
        self._runs: dict[str, _Known] = {}
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._listed_at = -1e9
        self._asked, self._at_once, self._closing = (threading.Event() for _ in range(3))
        threading.Thread(target=self._work, name="studio-mirror", daemon=True).start()

    # --- what is known, at once ---------------------------------------------------------------------------------------

    def rows(self) -> list[RunRow]:
        """Of the runs that the store had at the last look; another look is due."""
        self._asked.set()
        with self._lock:
            return [known.row for known in self._runs.values()]

    def remarks(self) -> list[str]:
        """Why what is shown may be old, or not be all; empty where it is."""
        return list(self._faults)

    def row(self, id: str) -> RunRow | None:
        """One run's; None where the store has it not."""
        return next((row for row in self.rows() if row.id == id), None)

    def wanted(self, id: str) -> Path | None:
        """Where the files of a run are, or will be, now that somebody looks at it; None where the store has it not."""
        with self._lock:
            name = next((name for name, known in self._runs.items() if known.row.id == id), None)
            if name is None:
                return None
            if next(reversed(self._wanted), None) != name:
                self._at_once.set()
            self._wanted[name] = None
            self._wanted.move_to_end(name)
            while len(self._wanted) > _MOST_WANTED:
                self._wanted.popitem(last=False)
        self._asked.set()
        return self._place.path / name

    def close(self) -> None:
        """What is under way is given up: the thread ends with the process at the latest."""
        for each in (self._closing, self._asked, self._at_once):
            each.set()
        self._place.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._asked.wait() and not self._closing.is_set():
            self._asked.clear()
            try:
                self._list()
                self._bring_wanted()
            except DeadlineExceeded as error:
                self._faults = [f"{self.address} does not answer, so what is shown may be old: {error}"]
            except (EtudeError, OSError) as error:
                self._faults = [str(error)]
            except Exception as bug:  # the page says so, and the studio goes on
                _log.exception("bug", store=self.address)
                self._faults = [f"{self.address}: {type(bug).__name__}: {bug}"]
            self._at_once.wait(LOOK_S)
            self._at_once.clear()

    def _list(self) -> None:
        """Which runs there are now, and of which files each is made."""
        places = {name: f"{name}/" for name in self._store.folders() if NAME.fullmatch(name)}
        places = dict(sorted(places.items())[:_MOST_RUNS])
        if self._store.exists(STORED):  # the address is one run's
            places = {self.address.rpartition("/")[2]: ""}
        found, faults = dict[str, _Known](), []
        with ThreadPoolExecutor(PARALLEL) as pool:
            for name, known in zip(places, pool.map(self._look, places, places.values()), strict=True):
                if isinstance(known, str):
                    faults.append(known)
                elif known is not None:
                    found[name] = known
        with self._lock:
            self._runs = found
        self._faults, self._listed_at = faults, time.monotonic()

    def _look(self, name: str, prefix: str) -> _Known | str | None:
        """A run as the store has it; why it cannot be read; None where there is none."""
        before = self._runs.get(name)
        try:
            found = self._store.get_changed(f"{prefix}{STORED}", MOST_STORED, before.tag if before else None)
            if found is None:
                return before
            stored, there = decoded(found[0]), f"{self.address}/{prefix}".rstrip("/")
        except MissingObject:  # a folder of something else, such as a weight store
            return None
        except CheckpointError as error:
            return f"{self.address}/{prefix}{error}"
        except WeightError as error:  # it is too long, or not ours to read: the others are there all the same
            return str(error)
        remark = before.row.remark if before else _not_here(stored)
        row = replace(stored.row, id=_id_of(name, there), name=name, directory=there, remark=remark)
        return _Known(prefix, found[1], stored, row)

    def _say(self, name: str, remark: str | None) -> None:
        with self._lock:
            if known := self._runs.get(name):
                known.row = replace(known.row, remark=remark)

    # --- files --------------------------------------------------------------------------------------------------------

    def _bring_wanted(self) -> None:
        """The files of each run that is looked at, the one that was asked for last before all others."""
        done = set[str]()
        while not self._closing.is_set():
            with self._lock:
                order = [name for name in reversed(self._wanted) if name in self._runs]
            name = next((name for name in order if name not in done), None)
            if name is None:
                return
            try:
                whole = self._bring(name, order)
            except (CheckpointError, WeightError) as error:  # of this run alone; the next look may find it mended
                self._say(name, str(error))
                whole = True
            if whole:
                done.add(name)

    def _bring(self, name: str, order: list[str]) -> bool:
        """All that there is room for; False where another was asked for meanwhile."""
        known, stored = self._runs[name], self._runs[name].stored
        paths, left_out = self._chosen(stored)
        total = sum(stored.files[path].size for path in paths)
        if not self._make_room(name, total, order):
            self._say(name, "its files went to make room for others'; raise store_cache_gb to keep more")
            return True
        here, at = 0, self._place.path / name
        for path in paths:
            for count in self._place.bring(at / path, stored.files[path], partial(self._piece, known)):
                here += count
                if here < total:
                    self._say(name, f"{here / 1e6:,.1f} of {total / 1e6:,.1f} MB of its files are here by now")
                if self._closing.is_set() or next(reversed(self._wanted)) != order[0]:
                    return False
                if time.monotonic() - self._listed_at > LOOK_S:
                    self._list()
        for gone in set(at.glob("archive/chunks/*.chunk")) - {at / path for path in paths}:
            gone.unlink()
        self._say(name, left_out)
        return True

    def _chosen(self, stored: Stored) -> tuple[list[str], str | None]:
        """Which files are brought, in their order, and what is said of the others: of an archive that is too large the
        newest chunks, and none where there is no room for all else. An index takes chunks in, so the oldest of these
        comes first."""
        chunks = stored.chunks()
        others = sorted(stored.files.keys() - chunks.values(), key=lambda path: stored.files[path].size)
        room, fitting, left_out = self._most_bytes, list[str](), None
        for path in (*others, *reversed(chunks.values())):
            room -= stored.files[path].size
            if room < 0:
                newest = f"of the {len(chunks)} chunks of its archive the newest {len(fitting) - len(others)} are here"
                left_out = f"{newest if path in chunks.values() else f'{path} is too large'}: raise store_cache_gb"
                break
            fitting.append(path)
        return [*fitting[: len(others)], *reversed(fitting[len(others) :])], left_out

    def _make_room(self, name: str, need: int, order: list[str]) -> bool:
        """Whether there is room for so many bytes of a run's, after others that were asked for earlier have gone."""
        sizes = self._place.sizes()
        sizes.pop(name, None)
        later = order[: order.index(name)]
        going = [other for other in sizes if other not in order] + [
            other for other in reversed(order) if other in sizes
        ]
        for other in going:
            if sum(sizes.values()) + need <= self._most_bytes or other in later:
                break
            self._place.remove(other)
            del sizes[other]
            if known := self._runs.get(other):
                self._say(other, _not_here(known.stored))
        return not later or sum(sizes.values()) + need <= self._most_bytes

    def _piece(self, known: _Known, piece: Piece) -> bytes:
        key = f"{known.prefix}{piece_key(piece.hash)}"
        for again in (False, True):  # it may have been damaged on its way
            data = self._store.get(key, PIECE, again=again)
            if len(data) == piece.bytes and hash_of(data) == piece.hash:
                return data
        raise CheckpointError(f"{self.address}/{key} is damaged: delete it there, and push the run again")


@dataclass
class _Known:
    """A run as the store had it at the last look."""

    prefix: str
    tag: str | None
    stored: Stored
    row: RunRow


def _id_of(name: str, there: str) -> str:
    return f"{name[:60]}-{hashlib.sha256(there.encode()).hexdigest()[:8]}"


def _not_here(stored: Stored) -> str:
    size = sum(file.size for file in stored.files.values())
    return f"its files are in the store, {size / 1e6:,.1f} MB, and come when somebody looks at it"

"""A run's directory, put into an object store for a studio elsewhere.

Owns `Pusher`. It may be asked again and again while the run goes on: what is there already is not sent again, and a
piece that no file has any more is removed. A process that is killed leaves the run in the store as it was; the next one
goes on where it stopped, and removes what it had left. Writes nothing into the run's directory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.errors import CheckpointError, ConfigError, DeadlineExceeded
from etude.host import beneath
from etude.host.lock import try_hold
from etude.studio.runs import RECIPE, SUMMARY, Runs
from etude.studio.stored import (
    MOST_STORED,
    NAME,
    PIECE,
    STORED,
    Piece,
    Stored,
    StoredFile,
    decoded,
    hash_of,
    of_run,
    piece_key,
)
from etude.weights.store import MissingObject, Store

_FOLDERS = ("ledger", "archive", "chunks", "model")
_MOST_ENTRIES, _DEPTH = 200_000, 2
LOOK_S = 10.0
"""Between two looks at a run that goes on."""
_SMALL = 8
"""Pieces at the end of a file that are shorter than they may be: when there are more, they are made one."""


@dataclass
class _Known:
    """A file as it was put there last."""

    stamp: tuple[int, int, float]
    file: StoredFile


class Pusher:
    """Of one run, which no other process puts there meanwhile. Close it."""

    def __init__(self, run: Path, store: Store, name: str | None = None) -> None:
        """Raises ConfigError where there is no run, another process pushes it, or another run has that name there."""
        self.run, self._store, self.name = run, store, name or run.resolve().name
        if not (run / RECIPE).is_file():
            raise ConfigError(f"{run}: no run here; give the directory that `etude train` writes")
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"--name {self.name!r}: letters, digits and . _ - are what a run is called by in a store")
        self._held = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if not try_hold(self._held):
                raise ConfigError(f"{run}: another process pushes this run")
            self._runs, self._known = Runs([run]), dict[str, _Known]()
            self.sent_pieces = self.sent_bytes = 0
            self._before = self._there()
            self._pieces = {key.rpartition("/")[2] for key in store.list(f"{self.name}/{piece_key('')}")}
        except BaseException:
            self.close()
            raise

    def push(self) -> bool:
        """Put there what is not; returns whether the run has ended, and all that there is of it is there. Raises
        WeightError and DeadlineExceeded as the store does, OSError where the run's files cannot be read."""
        is_over = (self.run / SUMMARY).exists()  # looked at first: what was written before it is there then
        rows = self._runs.rows(0.0)
        if len(rows) != 1:
            raise ConfigError(f"{self.run}: no run is there any more")
        files = {path: file for path in self._paths() if (file := self._file(path)) is not None}
        row = replace(rows[0], state="copied") if rows[0].state == "running" else rows[0]  # nobody tells when it is not
        stored = Stored(1, row, files)
        if self._before != stored:
            self._store.put(f"{self.name}/{STORED}", stored.encoded())
            self._before = stored
        for hash in self._pieces - stored.hashes():
            self._store.delete(f"{self.name}/{piece_key(hash)}")
            self._pieces.discard(hash)
        return is_over

    def close(self) -> None:
        os.close(self._held)

    def _there(self) -> Stored | None:
        """What is there of this run. Raises ConfigError where it is another's."""
        try:
            found = decoded(self._store.get(f"{self.name}/{STORED}", MOST_STORED))
        except MissingObject:
            return None
        except CheckpointError as error:
            raise ConfigError(f"{self._store.url}/{self.name}: {error}; give another --name") from None
        recipe = hash_of(self._read(RECIPE, 0, PIECE)), round((self.run / RECIPE).stat().st_mtime, 3)
        there = found.files.get(RECIPE)  # which a run writes once, when it begins
        if there is None or (there.pieces[0].hash, there.mtime) != recipe:
            said = "another run is there; give another --name, or remove that one"
            raise ConfigError(f"{self._store.url}/{self.name}: {said}")
        return found

    # --- files --------------------------------------------------------------------------------------------------------

    def _paths(self) -> list[str]:
        enter = _FOLDERS.__contains__
        found = beneath.walk(self.run, depth=_DEPTH, most_entries=_MOST_ENTRIES, enter=enter)
        return sorted(of_run(f"{here}/{name}".lstrip("/") for here, names in found for name in names))

    def _file(self, path: str) -> StoredFile | None:
        """A file, once all of it is in the store; None for one that was removed meanwhile."""
        found = beneath.lstat(self.run, path)
        if found is None:
            return None
        known, stamp = self._known.get(path), (found.st_ino, found.st_size, found.st_mtime)
        if known is not None and known.stamp == stamp:
            return known.file
        pieces = list(known.file.pieces) if known is not None and known.stamp[0] == found.st_ino else []
        try:
            self._cut(path, pieces, found.st_size)
        except FileNotFoundError:
            return None
        self._known[path] = _Known(stamp, StoredFile(round(found.st_mtime, 3), tuple(pieces)))
        return self._known[path].file

    def _cut(self, path: str, pieces: list[Piece], size: int) -> None:
        """Make `pieces`, which a file had, those that it has: what follows them is put into the store."""
        at = sum(piece.bytes for piece in pieces)
        while pieces and not self._holds(path, at, pieces[-1], size):  # its end was cut off, and written anew
            at -= pieces.pop().bytes
        small = 0
        while small < len(pieces) and pieces[-1 - small].bytes < PIECE:
            small += 1
        length = sum(piece.bytes for piece in pieces[len(pieces) - small :])
        if small > _SMALL or size - at + length >= PIECE:
            del pieces[len(pieces) - small :]
            at -= length
        while at < size and (data := self._read(path, at, min(PIECE, size - at))):
            pieces.append(self._put(data))
            at += len(data)

    def _holds(self, path: str, ends: int, piece: Piece, size: int) -> bool:
        return ends <= size and hash_of(self._read(path, ends - piece.bytes, piece.bytes)) == piece.hash

    def _read(self, path: str, at: int, most: int) -> bytes:
        return beneath.piece(self.run, path, at, most)[0]

    def _put(self, data: bytes) -> Piece:
        hash = hash_of(data)
        if hash not in self._pieces:
            self._store.put(f"{self.name}/{piece_key(hash)}", data)
            self._pieces.add(hash)
            self.sent_pieces += 1
            self.sent_bytes += len(data)
        return Piece(len(data), hash)


def pushed(run: Path, store: Store, name: str | None, follow: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Put a run there; with `follow` again and again until it has ended, through times at which the store does not
    answer, of which `say` is told. Returns where it is, and what was sent."""
    with contextlib.closing(Pusher(run, store, name)) as pusher:
        away = False
        while True:
            try:
                is_over, away = pusher.push(), False
            except DeadlineExceeded as error:
                if not follow:
                    raise
                if not away:
                    say(f"{error}; what the run writes meanwhile is pushed when it answers")
                is_over, away = False, True
            if is_over or not follow:
                break
            time.sleep(LOOK_S)
        return {
            "url": f"{store.url.rstrip('/')}/{pusher.name}",
            "pieces": pusher.sent_pieces,
            "bytes": pusher.sent_bytes,
        }

"""The directory of this machine in which the files of one store's runs come to lie, as they lay in each run's own.

Owns `Place`: who has the directory, what each run in it takes, and that a file is made of its pieces so that whoever
follows it sees it grow as the run's own did. What is here is checked against its hash before it is taken for what the
store has. Knows no store: `mirror` says which files are wanted, and brings their pieces.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from etude.host.lock import try_hold
from etude.host.scratch import Scratch
from etude.studio.stored import PIECE, Piece, StoredFile, hash_of


class Place:
    """A directory of one store's, for one process at a time; for another it is one that goes with it."""

    def __init__(self, home: Path, address: str) -> None:
        self._checked: dict[Path, tuple[Piece, ...]] = {}
        self.path, self._scratch, self._held = home / hashlib.sha256(address.encode()).hexdigest()[:16], None, -1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            is_ours = try_hold(self._held)
        except OSError:  # a home that cannot be written
            is_ours = False
        if not is_ours:
            self._scratch = Scratch("etude-studio-store-")
            self.path = self._scratch.path

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def sizes(self) -> dict[str, int]:
        """The runs that have files here, and how many bytes."""
        return {each.name: _size(each) for each in self.path.iterdir()}

    def remove(self, name: str) -> None:
        """All files of a run."""
        shutil.rmtree(self.path / name)

    def bring(self, at: Path, file: StoredFile, piece_of: Callable[[Piece], bytes]) -> Iterator[int]:
        """Make a file what it is in the store, piece by piece: how many bytes of each are here. It grows as the run's
        own did; where it is another by now, a new one takes its place. `piece_of` brings what is not here."""
        checked = self._checked.get(at, ()) if at.exists() else ()
        size = at.stat().st_size if at.exists() else 0
        begins = 0
        for number, piece in enumerate(file.pieces):
            ends = begins + piece.bytes
            if checked[number : number + 1] != (piece,) or size < ends:
                checked = checked[:number]
                have = _read(at, begins, min(size, ends))
                if len(have) < piece.bytes or hash_of(have) != piece.hash:
                    data = piece_of(piece)
                    if size > ends or not data.startswith(have):
                        _cut(at, begins)
                        size, have = begins, b""
                    _append(at, data[len(have) :])
                    size = ends
            begins = ends
            yield piece.bytes
        if size > begins:
            _cut(at, begins)
        if not at.exists():
            _append(at, b"")
        os.utime(at, (file.mtime, file.mtime))
        self._checked[at] = file.pieces


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _read(at: Path, begins: int, ends: int) -> bytes:
    if ends <= begins:
        return b""
    with at.open("rb") as file:
        file.seek(begins)
        return file.read(ends - begins)


def _append(at: Path, data: bytes) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    with at.open("ab") as file:
        file.write(data)


def _cut(at: Path, length: int) -> None:
    """A new file with the same beginning: whoever follows the old one sees that it is another."""
    partial = at.with_name(f"{at.name}.partial")
    with at.open("rb") as old, partial.open("wb") as new:
        for begins in range(0, length, PIECE):
            new.write(old.read(min(PIECE, length - begins)))
    partial.replace(at)

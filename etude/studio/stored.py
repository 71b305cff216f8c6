"""A run's files in an object store: what lies there, and in which form.

    NAME/run.json       the run's row in a list, and its files, each with the pieces that it is made of; written last
    NAME/pieces/HASH    part of a file, by the hash of what is in it

Owns `Stored`, the form of the first, and which files of a run's directory there are. What `run.json` names is there
before it is written, and is never changed; so whoever reads it sees the run as it was at one moment, and can tell
whether what came is what was put there. A store may be somebody else's: what it says is checked as a stranger's. Files
are put there by `push`, and brought back by `mirror`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from etude.errors import CheckpointError
from etude.serving.wire import faults
from etude.studio.run import METRICS
from etude.studio.runs import RECIPE, SUMMARY
from etude.studio.shapes import RunRow

STORED = "run.json"
PIECE = 4 << 20
"""Bytes of a piece, at most. What a file gets more goes into a piece of its own, until these are as long together."""
MOST_STORED = 64 << 20
"""Bytes of `run.json`: of the pieces of some hundreds of gigabytes."""
CHUNK = re.compile(r"archive/chunks/(\d{6,12})\.chunk")
_FILE = re.compile(
    rf"{re.escape(RECIPE)}|{re.escape(SUMMARY)}|{re.escape(METRICS)}|evaluation-[a-z]{{1,20}}\.json|"
    rf"ledger/groups\.jsonl|archive/notes\.jsonl|model/tokenizer\.json|{CHUNK.pattern}"
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a run may be called in a store."""
_HASH = re.compile(r"[0-9a-f]{32}")
_MOST_AT, _MOST_COUNT, _MOST_TEXT, _MOST_FIGURES = 1e12, 10**15, 200, 100
"""Of a time in seconds, of a count, and of what a row says: an honest one is far from it."""


@dataclass(frozen=True)
class Piece:
    """Part of a file."""

    bytes: int
    hash: str


@dataclass(frozen=True)
class StoredFile:
    """A file. Its pieces stand in their order."""

    mtime: float
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


@dataclass(frozen=True)
class Stored:
    """A run as it was when it was put there."""

    format: Literal[1]
    row: RunRow
    files: dict[str, StoredFile]

    def encoded(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    def hashes(self) -> set[str]:
        return {piece.hash for file in self.files.values() for piece in file.pieces}

    def chunks(self) -> dict[int, str]:
        """The chunks of its archive: their paths by their numbers, the oldest first."""
        found = {int(match[1]): path for path in self.files if (match := CHUNK.fullmatch(path))}
        return dict(sorted(found.items()))


_FORM = TypeAdapter(Stored)


def decoded(data: bytes) -> Stored:
    """Raises CheckpointError for what is none of ours."""
    try:
        found = _FORM.validate_json(data)
    except ValidationError as error:
        first = faults(error)[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{STORED} is of no run, or of another version of Etude: {where}: {first['msg']}"
        ) from None
    for path, file in found.files.items():
        sound = all(0 < each.bytes <= PIECE and _HASH.fullmatch(each.hash) for each in file.pieces)
        sound = sound and 0 <= file.mtime < _MOST_AT
        if not _FILE.fullmatch(path) or not sound:
            raise CheckpointError(f"{STORED} names {path[:200]!r}, which is no file of a run's")
    if not _is_a_runs(found.row):
        raise CheckpointError(f"{STORED} has a row that is of no run: what it says is too long, or a number too large")
    return found


def _is_a_runs(row: RunRow) -> bool:
    """Name, place and remark are not looked at: who reads them from a store says these itself."""
    times, counts = (row.started_at or 0.0, row.updated_at), (row.steps, row.version, row.bytes, row.trajectories or 0)
    return (
        all(0 <= each < _MOST_AT for each in times)
        and all(0 <= each < _MOST_COUNT for each in counts)
        and all(len(each) <= _MOST_TEXT for each in (row.recipe, *row.figures))
        and len(row.figures) <= _MOST_FIGURES
    )


def hash_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def piece_key(hash: str) -> str:
    """Below the run's own prefix."""
    return f"pieces/{hash}"


def of_run(paths: Iterable[str]) -> Iterator[str]:
    """Those that are put into a store; a run's checkpoints, weights and sandboxes are not."""
    return (path for path in paths if _FILE.fullmatch(path))

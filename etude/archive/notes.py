"""What people have written beside trajectories: theirs, and so in a file of its own, which no index is needed for.

    archive/notes.jsonl    {"note": id, "trajectory": …, "place": …, "text": …, "author": …, "at": …} or {"removed": id}

Owns `Note` and that file. Several processes may write: a line is added in one write.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.archive.fates import PIECE
from etude.durable import append_whole, naming
from etude.errors import ConfigError

NOTES = "notes.jsonl"
MOST_TEXT = 10_000
"""Characters."""


@dataclass(frozen=True)
class Note:
    """What somebody wrote beside a trajectory."""

    id: str
    trajectory: str
    place: Mapping[str, int]
    """Empty: all of it. Else {"event": its number in the log}, or {"segment": …, "token": …}."""
    text: str
    author: str
    at: float
    """Unix seconds."""


def add(directory: Path, trajectory: str, place: Mapping[str, int], text: str, author: str) -> Note:
    """Write a note down in the archive in `directory`. Raises ConfigError for one without a text or with too much."""
    if not text.strip() or len(text) > MOST_TEXT:
        raise ConfigError(f"a note has from 1 to {MOST_TEXT:,} characters, this one {len(text):,}")
    note = Note(secrets.token_hex(6), trajectory, dict(place), text, author, round(time.time(), 3))
    _append(directory, {"note": note.id, **{key: getattr(note, key) for key in _KEYS}})
    return note


def remove(directory: Path, note: str) -> None:
    _append(directory, {"removed": note})


def read(directory: Path, at: int) -> tuple[list[Note | str], int]:
    """Of the lines that begin at byte `at` or later: notes, and the ids of those that were removed; and where the next
    line begins, which is `at` when there are no more.
    """
    try:
        with (directory / NOTES).open("rb") as file:
            if os.fstat(file.fileno()).st_size < at:
                at = 0
            file.seek(at)
            lines, ending, _ = file.read(PIECE).rpartition(b"\n")
    except FileNotFoundError:
        return [], 0
    found: list[Note | str] = []
    for line in lines.split(b"\n"):
        try:
            told = json.loads(line)
            note = told.get("note")
            found.append(str(told["removed"]) if note is None else _note(note, told))
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):  # cut, or a stranger's
            continue
    return found, at + len(lines) + len(ending)


def _note(note: object, told: Mapping[str, Any]) -> Note:
    """Raises TypeError, ValueError or KeyError for what is no note."""
    place = {str(name): int(number) for name, number in told["place"].items()}
    return Note(str(note), str(told["trajectory"]), place, str(told["text"]), str(told["author"]), float(told["at"]))


_KEYS = ("trajectory", "place", "text", "author", "at")


def _append(directory: Path, line: Mapping[str, Any]) -> None:
    path = directory / NOTES
    with naming(path):
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            torn = file.seek(0, os.SEEK_END) > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            text = json.dumps(line).encode()
            append_whole(file.fileno(), b"\n" * torn + text + b"\n", path)

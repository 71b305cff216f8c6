"""The lines of a run's metrics.jsonl. Several processes append to it, and any may be killed or run out of disk.

Owns `append`, `note`, `rows` and `whole`. A line that was cut is ended by whoever writes next, so that no other is lost
with it, and is passed over by whoever reads. Uses next to nothing but the standard library, so that the supervisor can.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.durable import naming


def append(path: Path, row: Mapping[str, Any], *, synced: bool = False) -> None:
    """Add one line, in one write; with `synced` it is the disk's when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path), path.open("ab+") as file:
        torn = file.seek(0, os.SEEK_END) > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
        file.write(b"\n" * torn + json.dumps(row, default=float).encode() + b"\n")
        if synced:
            file.flush()
            os.fsync(file.fileno())


def note(path: Path, kind: str, row: Mapping[str, Any]) -> None:
    """Add a line of a kind, with the time in Unix seconds."""
    append(path, {"kind": kind, "at": round(time.time(), 3), **row})


def rows(path: Path) -> list[dict[str, Any]]:
    """Every whole line, in order; none where there is no file."""
    return whole(path.read_bytes()) if path.exists() else []


def whole(lines: bytes) -> list[dict[str, Any]]:
    """What is said in these lines, without those that were cut."""
    found = []
    for line in lines.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:  # cut
            continue
        if isinstance(row, dict):
            found.append(row)
    return found

"""What became of groups, read from the run's ledger: which of their members were dropped, and why.

Owns `Fates`. The ledger (`ledger/groups.jsonl`, which `rollouts.ledger` writes) is a journal: it only grows, and its
last word counts. Writes nothing; reads what was added since the last look.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEDGER = Path("ledger") / "groups.jsonl"
PIECE = 64 << 20
"""Bytes that are read at once: a stranger's file may say that it has a terabyte."""


@dataclass(frozen=True)
class Fate:
    """The last word of a group's members, or of one of them: None where nothing keeps it from being trained on."""

    group: str
    members: tuple[int, ...] | None
    """None: all of them."""
    reason: str | None

    def slots(self) -> list[str]:
        return [f"{self.group}/{member}" for member in self.members or ()]


def fates(run: Path, at: int) -> tuple[list[Fate], int]:
    """Of the lines that begin at byte `at` or later, in order; and where the next begins, which is `at` when there are
    no more. Where the ledger has become shorter it is another: all of it.
    """
    try:
        with (run / LEDGER).open("rb") as file:
            if os.fstat(file.fileno()).st_size < at:
                at = 0
            file.seek(at)
            lines, ending, _ = file.read(PIECE).rpartition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return [], 0
    return list(_read(lines)), at + len(lines) + len(ending)


def _read(lines: bytes) -> Iterator[Fate]:
    for line in lines.split(b"\n"):
        try:
            yield from _fate(json.loads(line))
        except (
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ):  # damaged, or of a later version: the ledger's owner says so
            continue


def _fate(line: Mapping[str, Any]) -> Iterator[Fate]:
    if "opened" in line:
        yield Fate(f"g{int(line['opened'])}", None, None)
    elif "lost" in line:
        yield Fate(f"g{int(line['lost'])}", (int(line["member"]),), str(line["reason"]))
    elif "closed" in line:
        reason = None if line["as"] == "ready" else str(line["as"])
        yield Fate(f"g{int(line['closed'])}", tuple(map(int, line["members"])), reason)

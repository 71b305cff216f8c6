"""Vectors that cost a lot, kept on the disk by the text that they are of: an embedding is paid for once.

Owns `KeptVectors`, one SQLite file for each embedder. A batch is one transaction, so a run that was killed goes on
where it was, and two runs may fill the same file.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Embed = Callable[[list[str]], NDArray[np.float32]]
_AT_ONCE = 16
_WAIT_S = 60.0
"""For another run that is writing into the same file."""


class KeptVectors:
    """Of an embedder whose `identity` names all that decides its vectors. `embedded` and `at_hand` count texts."""

    def __init__(self, directory: Path, identity: str, embed: Embed) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._disk = sqlite3.connect(directory / f"{identity}.sqlite", timeout=_WAIT_S)
        self._disk.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        self._embed = embed
        found = self._disk.execute("SELECT text, vector FROM vectors")
        self._known = {key: np.frombuffer(vector, np.float32) for key, vector in found}
        self._asked: set[bytes] = set()
        self.embedded = 0

    @property
    def at_hand(self) -> int:
        return len(self._asked) - self.embedded

    def of(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row a text."""
        keys = [hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=24).digest() for text in texts]
        lacking = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        for at in range(0, len(lacking), _AT_ONCE):
            self._add(list(lacking.items())[at : at + _AT_ONCE])
        self._asked.update(keys)
        return np.array([self._known[key] for key in keys], np.float32)

    def _add(self, some: Sequence[tuple[bytes, str]]) -> None:
        rows = self._embed([text for _, text in some])
        named = {key: row.astype(np.float32) for (key, _), row in zip(some, rows, strict=True)}
        with self._disk:
            self._disk.executemany(
                "INSERT OR IGNORE INTO vectors VALUES (?, ?)", [(key, row.tobytes()) for key, row in named.items()]
            )
        self._known.update(named)
        self.embedded += len(some)

"""Pieces and questions as vectors: what means the same lies close, whatever words it uses.

Owns `Embedder`, the interface, and `Table`, our own: a vector for each of the common words of code, made by `etude
pretrain` (`trainer.embedder`). A piece's vector is the sum of its words', a question's the same, turned by one matrix.
Vectors are whole numbers of eight bits, and so are their products: every machine ranks alike. Reads numpy's files and
nothing else.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from etude.errors import ConfigError
from etude.host.shipped import shipped_at
from etude.search.base import Vectors
from etude.search.content import Piece
from etude.search.words import words_of

File = tuple[Sequence[Piece], Sequence[str]]
"""Pieces, and the lines of the file that they are of."""
FULL = 127


class Embedder(Protocol):
    """`identity` names what decides the vectors: others are kept beside them, never compared with them. `width` is how
    many numbers one has, 0 where only an answer tells."""

    identity: str
    width: int

    def files(self, files: Sequence[File]) -> list[Vectors]:
        """Of the pieces of each. Raises EmbedderFailed."""
        ...

    def question(self, text: str) -> Vectors:
        """One row. Raises EmbedderFailed."""
        ...


class EmbedderFailed(Exception):
    """It does not answer; the message says which, and why."""


class Table:
    """See the module. Raises ConfigError where the file is none."""

    def __init__(self, data: bytes, place: str = "the embedder") -> None:
        self.identity = f"table-{hashlib.blake2b(data, digest_size=6).hexdigest()}"
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                words = bytes(stored["words"]).decode().split("\n")
                self._vectors, scales = stored["vectors"], stored["scales"].astype(np.float32)
                self._turn = stored["turn"].astype(np.float32)
                self._defined = float(stored["defined"])
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{place}: no table of an embedder ({error}); `etude pretrain` makes one") from None
        self._scales = scales[:, None]
        self._row = {word: row for row, word in enumerate(words)}
        self.width = self._vectors.shape[1]

    def files(self, files: Sequence[File]) -> list[Vectors]:
        return [self.pieces(pieces) for pieces, _ in files]

    def pieces(self, pieces: Sequence[Piece]) -> Vectors:
        found = np.zeros((len(pieces), self.width), np.float32)
        for at, piece in enumerate(pieces):
            found[at] = self._sum(piece.words) + self._defined * self._sum(piece.defined)
        return rounded(found)

    def question(self, text: str) -> Vectors:
        return rounded(self._sum(Counter(words_of(text)))[None] @ self._turn)

    def _sum(self, words: Mapping[str, int]) -> NDArray[np.float32]:
        known = [(row, times) for word, times in words.items() if (row := self._row.get(word)) is not None]
        if not known:
            return np.zeros(self.width, np.float32)
        rows, times = np.array(known).T
        weights = np.log1p(times).astype(np.float32)[:, None] * self._scales[rows]
        return (self._vectors[rows] * weights).sum(0)


def rounded(vectors: NDArray[np.floating]) -> Vectors:
    """Each of one length, in eight bits."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.rint(vectors / np.where(length == 0, 1, length) * FULL).astype(np.int8)


def cosines(
    vectors: Sequence[Vectors], question: Vectors, above: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which rows of all these are nearer to a question than a cosine, and how near. Numbers of eight bits whose sums
    stay below 2^24 are exact, in whatever order a machine adds them."""
    asked = question[0].astype(np.float32)
    room = np.empty((_AT_ONCE, len(asked)), np.float32)  # what stays in a core's cache is read several times faster
    places, found, begin = [np.empty(0, np.int64)], [np.empty(0, np.float32)], 0
    for each in vectors:
        products = np.empty(len(each), np.float32)
        for at in range(0, len(each), _AT_ONCE):
            some = room[: len(each) - at]
            np.copyto(some, each[at : at + _AT_ONCE])
            np.dot(some, asked, out=products[at : at + _AT_ONCE])
        near = np.flatnonzero(products > above * FULL**2)
        places.append(near + begin)
        found.append(products[near])
        begin += len(each)
    return np.concatenate(places), np.concatenate(found).astype(np.float64) / FULL**2


_AT_ONCE = 1 << 10


@cache
def shipped() -> Table:
    """The one that comes with Etude."""
    path = shipped_at("etude-embedder") / "table.npz"
    try:
        return Table(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); install Etude anew") from None

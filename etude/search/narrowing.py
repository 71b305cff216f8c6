"""Of the files of one listing, those that a grep has to read.

Owns `Narrowing`: the listing beside what an index knows of it, as arrays, made once and asked for every pattern. A file
is left out only where its content is known for sure, is no odd one, and lacks what a line must hold. Knows no pattern
and no store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from etude.search.store import Facts, Known

Contents = NDArray[np.int64]
"""Numbers of contents, in order, each once."""


class Narrowing:
    """Of files with their stamps, and of `others` that are always read. `known` is what the index has of each path."""

    def __init__(
        self, stamps: Mapping[str, str], others: Sequence[str], known: Mapping[str, Known], facts: Mapping[int, Facts]
    ) -> None:
        contents = {path: _content(known.get(path), stamp, facts) for path, stamp in stamps.items()}
        contents.update(dict.fromkeys(others, -1))
        self.paths = sorted(contents, key=in_bytes)
        self._keys = list(map(in_bytes, self.paths))
        self._contents = np.array([contents[path] for path in self.paths], np.int64)
        self._not_plain = np.array([number < 0 or not facts[number].plain for number in self._contents.tolist()], bool)

    def read(self, found: Contents, ignore_case: bool) -> list[str]:
        """In order: those with one of the contents that were found, and those of which nothing is known."""
        kept = self._contents < 0
        if len(found):
            at = np.minimum(np.searchsorted(found, self._contents), len(found) - 1)
            kept |= found[at] == self._contents
        if ignore_case:
            kept |= self._not_plain
        return [self.paths[at] for at in np.flatnonzero(kept).tolist()]

    def below(self, folder: str) -> int:
        """How many files there are below a directory; "" is the whole."""
        if not folder:
            return len(self.paths)
        inside = in_bytes(folder)
        return bisect_left(self._keys, inside + b"0") - bisect_left(self._keys, inside + b"/")  # `0` follows `/`


def in_bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _content(known: Known | None, stamp: str, facts: Mapping[int, Facts]) -> int:
    """-1 for what is to be read whatever the pattern."""
    if known is None or not stamp or known.stamp != stamp or known.content not in facts:
        return -1
    return -1 if facts[known.content].odd else known.content

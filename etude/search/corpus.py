"""The pieces of a workspace's files as arrays: what a question is put to.

Owns `Corpus`, which is kept up file by file. A file that is dropped, or put again, leaves its rows behind, and nothing
finds them any more; `worn` says when most are such and it is time for a new one. In what order files were put changes
nothing that it answers. Knows what a word and a vector find and how rare they are within these files; how that is
weighed is the business of `ranking`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from etude.search.base import Vectors
from etude.search.embedder import cosines
from etude.search.postings import Numbers, Tags
from etude.search.store import ROW_BYTES, Facts
from etude.search.words import words_of

Find = Callable[[bytes], tuple[Numbers, Tags]]
"""Where a term stands: `Store.find`."""
Floats = NDArray[np.float64]
Places = NDArray[np.int64]
_TOGETHER = 4000
"""Files whose vectors are read at once."""


class Corpus:
    """Of no file at first."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        """Of all files that were ever put, by their numbers."""
        self.rows = np.empty((0, 4), np.uint32)
        """Of each piece: its first line from 0, the line after it, how many words it has, the number of its text."""
        self.file = np.empty(0, np.int32)
        """Of each piece: the number of its file."""
        self.alive = np.empty(0, bool)
        """Of each file: whether it is there."""
        self._number: dict[str, int] = {}
        self._starts = np.zeros(1, np.int64)
        self._firsts = np.empty(0, np.int64)
        self._contents: list[int] = []
        self._words = self._pieces = 0
        self._by_first: tuple[Places, Places, Places, Places] | None = None
        self._named = _Names()
        self._vectors: list[Vectors] = []
        self._embedded = 0

    # --- files ------------------------------------------------------------------------------------------------------

    def put(self, files: Mapping[str, Facts]) -> None:
        """Files that are new, or have other contents now."""
        self.drop(files)
        paths = sorted(files, key=lambda path: files[path].first)  # contents that came together lie together
        facts = [files[path] for path in paths]
        counts = np.array([len(each.pieces) for each in facts], np.int64) // ROW_BYTES
        rows = np.frombuffer(b"".join([each.pieces for each in facts]), "<u4").reshape(-1, 4)
        start = len(self.paths)
        self._number.update(zip(paths, range(start, start + len(paths)), strict=True))
        self.paths += paths
        self.rows = np.concatenate([self.rows, rows]) if start else rows
        self.file = np.append(self.file, np.repeat(np.arange(start, len(self.paths), dtype=np.int32), counts))
        self.alive = np.append(self.alive, np.ones(len(paths), bool))
        self._starts = np.append(self._starts, self._starts[-1] + np.cumsum(counts))
        self._firsts = np.append(self._firsts, np.array([each.first for each in facts], np.int64))
        self._contents += [each.number for each in facts]
        self._words += int(rows[:, 2].sum(dtype=np.int64))
        self._pieces += len(rows)
        self._by_first = None
        self._named.add(paths)

    def drop(self, paths: Iterable[str]) -> None:
        """Files that are gone; one that was not there is no matter."""
        for number in [self._number.pop(path) for path in paths if path in self._number]:
            pieces = self.rows[self._starts[number] : self._starts[number + 1]]
            self.alive[number] = False
            self._words -= int(pieces[:, 2].sum(dtype=np.int64))
            self._pieces -= len(pieces)
            self._by_first = None

    @property
    def worn(self) -> bool:
        """Whether it holds more of what is gone than of what is there."""
        return len(self.paths) > 2 * len(self._number)

    # --- words --------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> float:
        """How many words a piece has, 1 at least."""
        return max(self._words / self._pieces, 1.0) if self._pieces else 1.0

    def with_word(self, term: bytes, find: Find) -> tuple[Places, Floats, float]:
        """The pieces that a term stands in, how often, and how rare that makes it."""
        places, times = self._expanded(*find(term))
        return places, times, _rarity(self._pieces, len(places))

    def with_path(self, word: str) -> tuple[NDArray[np.bool_], float]:
        """Of each file whether its path has a word, and how rare that makes it."""
        found = self._named.having(word) & self.alive
        return found, _rarity(len(self._number), int(found.sum()))

    def marked(self, mark: Callable[[str], bool], folders: bool) -> NDArray[np.bool_]:
        """Of each file whether a mark is true of its name, or with `folders` of any part of its path."""
        return self._named.marked(mark, folders)

    def _expanded(self, numbers: Numbers, tags: Tags) -> tuple[Places, Floats]:
        """Pieces of this corpus by their numbers in the store; those of other workspaces fall out."""
        firsts, ends, files_of, begins = self._contents_in_order()
        if not len(firsts) or not len(numbers):
            return np.empty(0, np.int64), np.empty(0)
        content = np.searchsorted(firsts, numbers, "right") - 1
        ours = (content >= 0) & (numbers < ends[content])
        content, inside, times = content[ours], numbers[ours] - firsts[content[ours]], tags[ours]
        files = begins[content + 1] - begins[content]
        which = np.repeat(np.arange(len(content)), files)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(files) - files, files)
        file = files_of[begins[content[which]] + nth]
        return self._starts[file] + inside[which], times[which].astype(np.float64)

    def _contents_in_order(self) -> tuple[Places, Places, Places, Places]:
        """Of the contents that are there the number of the first piece and the one after the last, in order; and the
        files of each: several may have one content."""
        if self._by_first is None:
            counts = np.diff(self._starts)
            having = np.flatnonzero((counts > 0) & self.alive)
            order = having[np.argsort(self._firsts[having], kind="stable")]
            firsts, at = np.unique(self._firsts[order], return_index=True)
            self._by_first = firsts, firsts + counts[order][at], order, np.append(at, len(order))
        return self._by_first

    # --- vectors ------------------------------------------------------------------------------------------------------

    def embed(self, width: int, vectors: Callable[[Sequence[int]], Mapping[int, Vectors]]) -> None:
        """Read the vectors of the files that came since the last time; `vectors` has them by contents."""
        while self._embedded < len(self.paths):
            some = slice(self._embedded, self._embedded + _TOGETHER)
            self._vectors.append(self._in_order(vectors, some, width))
            self._embedded = min(some.stop, len(self.paths))

    def near(self, question: Vectors, above: float) -> tuple[Places, Floats]:
        """The pieces whose cosine with a question is above a bound, and that."""
        return cosines(self._vectors, question, above)

    def _in_order(self, vectors: Callable[[Sequence[int]], Mapping[int, Vectors]], files: slice, width: int) -> Vectors:
        """A row for each piece of these files; zero where there is none, as of what is gone meanwhile."""
        contents, alive = self._contents[files], self.alive[files].tolist()
        found = vectors(sorted({each for each, there in zip(contents, alive, strict=True) if there}))
        shapes = [(count, width) for count in np.diff(self._starts)[files].tolist()]
        given = map(found.get, contents)
        rows = (
            each if each is not None and each.shape == shape else np.zeros(shape, np.int8)
            for each, shape in zip(given, shapes, strict=True)
        )  # fmt: skip
        return np.concatenate([np.empty((0, width), np.int8), *rows])


class _Names:
    """What the paths of files say. Most share directories and many have one name, so each part is looked at once."""

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._names: list[str] = []
        self._folders: dict[str, int] = {}
        self._folder_of = np.empty(0, np.int32)
        self._name_of = np.empty(0, np.int32)
        self._inside: list[tuple[int, int]] = []
        self._pairs = np.empty((0, 2), np.int32)
        self._searched: tuple[str, list[int]] | None = None
        self._marked: dict[Callable[[str], bool], list[bool]] = {}

    def add(self, paths: Sequence[str]) -> None:
        """The next files."""
        split = [path.rpartition("/") for path in paths]
        folders = np.array([self._folder(folder) for folder, _, _ in split], np.int32)
        names = np.array([self._part(name) for _, _, name in split], np.int32)
        self._folder_of, self._name_of = np.append(self._folder_of, folders), np.append(self._name_of, names)

    def having(self, word: str) -> NDArray[np.bool_]:
        """Of each file whether a word is in its path."""
        parts = np.zeros(len(self._names), bool)
        parts[[at for at in self._may_have(word) if word in _words_of_part(self._names[at])]] = True
        return self._of_folders(parts) | parts[self._name_of]

    def marked(self, mark: Callable[[str], bool], folders: bool) -> NDArray[np.bool_]:
        """Of each file whether a mark is true of its name, or with `folders` of any part of its path."""
        known = self._marked.setdefault(mark, [])
        known += map(mark, self._names[len(known) :])
        parts = np.array(known, bool)
        own = parts[self._name_of]
        return own | self._of_folders(parts) if folders else own

    def _of_folders(self, parts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of each file whether it is below a directory with one of these parts."""
        if len(self._pairs) < len(self._inside):
            self._pairs = np.array(self._inside, np.int32)
        pairs, folders = self._pairs, np.zeros(len(self._folders), bool)
        folders[pairs[parts[pairs[:, 1]], 0]] = True
        return folders[self._folder_of]

    def _part(self, part: str) -> int:
        if (number := self._parts.get(part)) is None:
            number = self._parts[part] = len(self._names)
            self._names.append(part)
            self._searched = None
        return number

    def _folder(self, folder: str) -> int:
        if (number := self._folders.get(folder)) is None:
            number = self._folders[folder] = len(self._folders)
            self._inside += [(number, self._part(part)) for part in folder.split("/")]
        return number

    def _may_have(self, word: str) -> Iterator[int]:
        """The parts that may have a word: an ending that was taken off has changed its last letter at most."""
        if self._searched is None:
            lower = [part.lower() for part in self._names]
            self._searched = "\n".join(lower), [0, *accumulate(len(each) + 1 for each in lower)]
        text, begins = self._searched
        at, start = 0, word[:-1] if len(word) > 2 else word
        while (at := text.find(start, at)) >= 0:
            part = bisect_right(begins, at) - 1
            yield part
            at = begins[part + 1]


@lru_cache(1 << 16)
def _words_of_part(part: str) -> frozenset[str]:
    return frozenset(words_of(part))


def _rarity(all_of_them: int, having: int) -> float:
    return math.log(1 + (all_of_them - having + 0.5) / (having + 0.5))

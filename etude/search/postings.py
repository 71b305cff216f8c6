"""Where words and grams stand, as rows of a database.

Owns `Postings`: for each term a list of (number, tag) in as many rows as there are segments. A segment is what one
transaction brought; several small ones are made into one as they come, so a common term is a few rows. A word's numbers
are pieces and its tag how often it is there; a gram's row is that of its first two bytes, the numbers are contents and
the tag is the third byte. Every row is compressed, and so has a checksum: one that was damaged is told from one that
was not. Commits nothing: `store` does.
"""

from __future__ import annotations

import itertools
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

SCHEMA = """
CREATE TABLE IF NOT EXISTS segments (id INTEGER PRIMARY KEY, contents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS postings (term BLOB NOT NULL, segment INTEGER NOT NULL, records BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS postings_by_term ON postings (term, segment);
"""
WORD, DEFINED, GRAM = b"w", b"d", b"g"
_FEW = 8
"""So many segments of one size become one of the next."""
_MOST_TERMS = 400
_SHORT, _RAW, _DEFLATED = 24, b"0", b"1"
"""Deflating so few numbers takes longer than reading them."""
Numbers = NDArray[np.uint32]
Tags = NDArray[np.uint8]
Keep = Callable[[Numbers], NDArray[np.bool_]]


class Postings:
    """Of one open database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def add(self, contents: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """A segment about so many contents: terms with their records (`rows_of`)."""
        segment = self._segment(contents)
        packed = ((term, segment, records) for term, records in rows)
        self._db.executemany("INSERT INTO postings VALUES (?, ?, ?)", packed)
        while merged := self._few_of_one_size():
            self._merge(merged, None)

    def find(self, term: bytes) -> tuple[Numbers, Tags]:
        """All there are, of whatever workspace. Raises zlib.error where a row is damaged."""
        rows = self._db.execute("SELECT records FROM postings WHERE term = ? ORDER BY segment", (term,))
        return _joined([_unpacked(records) for (records,) in rows])

    def sizes(self, terms: Sequence[bytes]) -> dict[bytes, int]:
        """How many bytes each term's rows have, without reading them."""
        found: dict[bytes, int] = {}
        for start in range(0, len(terms), _MOST_TERMS):
            some = terms[start : start + _MOST_TERMS]
            marks = ",".join("?" * len(some))
            words = f"SELECT term, sum(length(records)) FROM postings WHERE term IN ({marks}) GROUP BY term"
            found.update(self._db.execute(words, some))
        return found

    def compact(self, keep: Callable[[bytes], Keep]) -> None:
        """One segment of all, without the numbers that are not kept; `keep` is asked with the kind of a term."""
        segments = [segment for (segment,) in self._db.execute("SELECT id FROM segments")]
        if segments:
            self._merge(segments, keep)

    def _segment(self, contents: int) -> int:
        made = self._db.execute("INSERT INTO segments (contents) VALUES (?)", (contents,)).lastrowid
        assert made is not None, "SQLite numbers what it inserts"
        return made

    def _few_of_one_size(self) -> list[int]:
        by_size: dict[int, list[int]] = {}
        for segment, contents in self._db.execute("SELECT id, contents FROM segments"):
            by_size.setdefault(max(contents, 1).bit_length() // 3, []).append(segment)
        return next((segments for segments in by_size.values() if len(segments) >= _FEW), [])

    def _merge(self, segments: Sequence[int], keep: Callable[[bytes], Keep] | None) -> None:
        marks = ",".join("?" * len(segments))
        [(contents,)] = self._db.execute(f"SELECT sum(contents) FROM segments WHERE id IN ({marks})", segments)
        segment = self._segment(contents)
        words = f"SELECT term, records FROM postings WHERE segment IN ({marks}) ORDER BY term, segment"
        reading = self._db.cursor().execute(words, segments)
        rows = ((term, segment, records) for term, records in _merged(reading, keep) if records)
        self._db.executemany("INSERT INTO postings VALUES (?, ?, ?)", rows)  # of another segment than what is read
        self._db.execute(f"DELETE FROM postings WHERE segment IN ({marks})", segments)
        self._db.execute(f"DELETE FROM segments WHERE id IN ({marks})", segments)


def rows_of(kind: bytes, found: dict[str, tuple[list[int], list[int]]]) -> Iterator[tuple[bytes, bytes]]:
    """Of words: the pieces each is in, and how often."""
    for word, (numbers, times) in found.items():
        term = kind + word.encode("utf-8", "replace")
        if len(numbers) == 1:
            yield term, _packed_one(numbers[0], min(times[0], 255))
            continue
        tags = np.minimum(np.array(times, np.int64), 255).astype(np.uint8)
        yield term, _packed(*_in_order(np.array(numbers, np.uint32), tags))


def rows_of_grams(found: Sequence[tuple[int, Numbers]]) -> Iterator[tuple[bytes, bytes]]:
    """Of grams: the contents each is in."""
    if not any(len(grams) for _, grams in found):
        return  # binary files and empty ones have none
    grams = np.concatenate([grams for _, grams in found])
    numbers = np.repeat(np.array([n for n, _ in found], np.uint32), [len(grams) for _, grams in found])
    order = np.lexsort((numbers, grams))
    grams, numbers = grams[order], numbers[order]
    starts = np.flatnonzero(np.diff(grams >> 8, prepend=np.uint32(1 << 31)))
    for start, end in zip(starts, [*starts[1:], len(grams)], strict=True):
        pair = int(grams[start]) >> 8
        tags = (grams[start:end] & 0xFF).astype(np.uint8)
        yield GRAM + pair.to_bytes(2, "big"), _packed(numbers[start:end], tags)


def _merged(rows: Iterable[tuple[bytes, bytes]], keep: Callable[[bytes], Keep] | None) -> Iterator[tuple[bytes, bytes]]:
    """Each term once, with all its records; none where nothing of them is kept."""
    for term, each in itertools.groupby(rows, key=lambda row: row[0]):
        parts = [records for _, records in each]
        if len(parts) == 1 and keep is None:
            yield term, parts[0]  # as most words are
            continue
        numbers, tags = _joined([_unpacked(records) for records in parts])
        if keep is not None:
            kept = keep(term[:1])(numbers)
            numbers, tags = numbers[kept], tags[kept]
        yield term, _packed(*_in_order(numbers, tags)) if len(numbers) else b""


def _joined(parts: Sequence[tuple[Numbers, Tags]]) -> tuple[Numbers, Tags]:
    if not parts:
        return np.empty(0, np.uint32), np.empty(0, np.uint8)
    return np.concatenate([numbers for numbers, _ in parts]), np.concatenate([tags for _, tags in parts])


def _in_order(numbers: Numbers, tags: Tags) -> tuple[Numbers, Tags]:
    order = np.lexsort((numbers, tags))
    return numbers[order], tags[order]


def _packed(numbers: Numbers, tags: Tags) -> bytes:
    """Tags, then the steps between numbers byte by byte: what is alike stands together."""
    steps = numbers.astype("<u4")
    steps[1:] -= numbers[:-1]  # down to the next tag's first they wrap around
    data = tags.tobytes() + steps.view(np.uint8).reshape(-1, 4).T.tobytes()
    if len(numbers) < _SHORT:
        return _RAW + zlib.crc32(data).to_bytes(4, "big") + data
    return _DEFLATED + zlib.compress(data, 1)


def _packed_one(number: int, tag: int) -> bytes:
    """The same for one number, as most words have."""
    data = bytes((tag,)) + number.to_bytes(4, "little")
    return _RAW + zlib.crc32(data).to_bytes(4, "big") + data


def _unpacked(records: bytes) -> tuple[Numbers, Tags]:
    kind, rest = records[:1], records[1:]
    plain = rest[4:] if kind == _RAW else zlib.decompress(rest)
    if len(plain) % 5 or (kind == _RAW and zlib.crc32(plain).to_bytes(4, "big") != rest[:4]):
        raise zlib.error("a row is torn")
    data = np.frombuffer(plain, np.uint8)
    count = len(data) // 5
    steps = np.ascontiguousarray(data[count:].reshape(4, count).T).view("<u4").reshape(count)
    return np.cumsum(steps, dtype=np.uint32), data[:count]

"""The tokens of a session as columns, and its events without them; and the log again from both.

Owns `split`, `joined`, and the bytes of tokens, marks and files. What is aligned with sampled tokens is kept for those
alone. Columns are kept a byte of every number after the other: so they take a third less. Loses nothing but routes.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from etude.archive.records import FileChange, Marks, Record, Said, SegmentSpan, Tokens
from etude.errors import CheckpointError
from etude.records import Event

_OF_TOKENS = ("ids", "logprobs", "versions", "routes")


def split(log: Iterable[tuple[Event, Record]]) -> tuple[Tokens, list[Said]]:
    """What a log says, and its tokens. A context that was never sealed is a segment all the same."""
    ids, sampled, logprobs, versions = array("i"), bytearray(), array("f"), array("i")
    said, segments, start = [], [], 0
    for event, record in log:
        place = None
        if "ids" in record:
            place = (len(segments), len(ids), len(ids) + len(record["ids"]))
            ids.extend(record["ids"])
            given = "logprobs" in record
            sampled.extend(bytes((given,)) * (place[2] - place[1]))
            if given:
                logprobs.extend(record["logprobs"])
                versions.extend(record["versions"])
        elif event.kind == "segment_sealed":
            segments.append(SegmentSpan(event.data["segment"], start, len(ids)))
            start = len(ids)
        said.append(Said(event, place, {key: record[key] for key in record if key not in _OF_TOKENS}))
    if start < len(ids):
        segments.append(SegmentSpan("turns", start, len(ids)))
    where = np.frombuffer(sampled, np.uint8).astype(np.bool_)
    return Tokens(
        tuple(segments), np.array(ids, np.int32), where, _spread(np.array(logprobs, np.float32), where),
        _spread(np.array(versions, np.int32), where),
    ), said  # fmt: skip


def joined(said: Sequence[Said], tokens: Tokens) -> list[tuple[Event, Record]]:
    """The log that was split: its records have what they had, but for routes."""
    return [(each.event, {**each.record, **_record(each.tokens, tokens)}) for each in said]


def _record(place: tuple[int, int, int] | None, tokens: Tokens) -> Record:
    if place is None:
        return {}
    here = slice(*place[1:])
    record = {"ids": tokens.token_ids[here].tolist()}
    if tokens.sampled[here].any():
        record |= {"logprobs": tokens.logprobs[here].tolist(), "versions": tokens.versions[here].tolist()}
    return record


# --- events -----------------------------------------------------------------------------------------------------------


def events_packed(said: Iterable[Said]) -> bytes:
    """A JSON array of each: kind, time, data, place of its tokens, and what else the log had of it."""
    rows = [[each.event.kind, each.event.at, each.event.data, each.tokens, each.record or None] for each in said]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate becomes \\udcXX, which is JSON for just that


def events_unpacked(data: bytes) -> list[Said]:
    """Raises TypeError or ValueError for what is not so packed."""
    return [_said(*each) for each in json.loads(data or b"[]")]


def _said(kind: Any, at: Any, about: Any, place: Any, record: Any) -> Said:
    if not isinstance(kind, str) or not isinstance(at, float | int) or not isinstance(about, dict):
        raise TypeError(kind)
    if place is not None and (not isinstance(place, list) or [type(each) for each in place] != [int] * 3):
        raise TypeError(place)
    if not isinstance(record, dict | None):
        raise TypeError(record)
    return Said(Event(kind, at, about), (place[0], place[1], place[2]) if place else None, record or {})


# --- tokens and marks -------------------------------------------------------------------------------------------------


def tokens_packed(tokens: Tokens) -> bytes:
    here = tokens.sampled
    return b"".join((
        len(here).to_bytes(4, "little"), np.packbits(here).tobytes(), _shuffled(tokens.token_ids),
        _shuffled(tokens.logprobs[here]), _shuffled(tokens.versions[here]),
    ))  # fmt: skip


def tokens_unpacked(data: bytes, segments: Iterable[Sequence]) -> Tokens:
    """Raises CheckpointError where the bytes are not those of so many tokens."""
    total = int.from_bytes(data[:4], "little")
    mask_bytes = -(-total // 8)
    where = np.unpackbits(np.frombuffer(data, np.uint8, mask_bytes, 4), count=total).astype(np.bool_)
    sampled, rest = int(where.sum()), data[4 + mask_bytes :]
    if len(rest) != 4 * (total + 2 * sampled):
        raise CheckpointError(f"the archive has {len(rest)} bytes for {total} tokens, of which {sampled} were sampled")
    spans = tuple(SegmentSpan(*each) for each in segments)
    if not all(0 <= span.start <= span.stop <= total for span in spans):
        raise CheckpointError(f"the archive has segments that lie outside of its {total} tokens")
    ids, logprobs, versions = np.split(np.frombuffer(rest, np.uint8), [4 * total, 4 * (total + sampled)])
    return Tokens(
        spans, _unshuffled(ids, np.int32), where,
        _spread(_unshuffled(logprobs, np.float32), where), _spread(_unshuffled(versions, np.int32), where),
    )  # fmt: skip


def marks_packed(marks: Marks) -> bytes:
    columns = (marks.advantages, marks.trainer_logprobs, marks.entropies)
    return marks.mask.tobytes() + b"".join(_shuffled(column) for column in columns)


def marks_unpacked(data: bytes, trajectory_id: str) -> Marks:
    size = len(data) // 13
    mask = np.frombuffer(data, np.uint8, size)
    parts = np.split(np.frombuffer(data, np.uint8, 12 * size, size), 3)
    advantages, logprobs, entropies = (_unshuffled(part, np.float32) for part in parts)
    return Marks(trajectory_id, advantages, logprobs, entropies, mask)


def _spread(values: npt.NDArray, where: npt.NDArray[np.bool_]) -> npt.NDArray:
    """Values of sampled tokens as a column of all: 0 elsewhere."""
    column = np.zeros(len(where), values.dtype)
    column[where] = values
    return column


def _shuffled(values: npt.NDArray) -> bytes:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def _unshuffled(data: npt.NDArray[np.uint8], dtype: npt.DTypeLike) -> npt.NDArray:
    size = np.dtype(dtype).itemsize
    return np.ascontiguousarray(data.reshape(size, -1).T).view(dtype).reshape(-1)


# --- files ------------------------------------------------------------------------------------------------------------


def files_packed(files: Sequence[FileChange]) -> bytes:
    """A JSON table, and the contents end to end."""
    sides = [side for change in files for side in (change.before, change.after)]
    rows = [
        [change.path, *(None if side is None else len(side) for side in (change.before, change.after)), change.cut]
        for change in files
    ]
    table = json.dumps(rows).encode()
    return len(table).to_bytes(4, "little") + table + b"".join(side for side in sides if side is not None)


def files_unpacked(data: bytes) -> tuple[FileChange, ...]:
    if not data:
        return ()
    at = 4 + int.from_bytes(data[:4], "little")
    found = []
    for path, *sizes, cut in json.loads(data[4:at]):
        if not isinstance(path, str) or not all(size is None or size >= 0 for size in sizes):
            raise TypeError(path)
        sides: list[bytes | None] = []
        for size in sizes:
            sides.append(None if size is None else data[at : at + size])
            at += size or 0
        found.append(FileChange(path, sides[0], sides[1], cut))
    return tuple(found)

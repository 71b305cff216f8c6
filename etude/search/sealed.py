"""What a team shares of an index: for each content its pieces and vectors, sealed so that its holders alone open it.

Owns `seal` and `Sealed`. An object store asks nobody anything, so the proof that somebody holds a content is what opens
its entry: keyed hashes of the content's bytes, with a nonce that is drawn for every push as their key. One names the
entry and the other is the key it is sealed with (AES-GCM). Who has no more than a hash of a content, git's say, or a
proof for another push, has neither. An entry is bound to its nonce and to the name that the whole lies under. No path,
no line and no gram is in it. Whoever reads the whole without the files learns how many there are and how long each
entry is. Says nothing of who pushed it: `sharing` and docs/search.md do.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import struct
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.errors import ConfigError, MissingDependency
from etude.extras import install_command
from etude.search.base import Vectors
from etude.search.content import Piece, lines_of, text_of

_MAGIC = b"etude-index 1\n"
_NONCE_BYTES = 32
_HEAD = struct.Struct(f">{len(_MAGIC)}s{_NONCE_BYTES}sI")
_ROW = struct.Struct(">32sQI")
_SHAPE = struct.Struct(">IH")
_ONCE = bytes(12)
"""AES-GCM's own nonce: a key seals one entry and no other."""
_MOST_TOLD = 1 << 23
"""Of what an entry says of its pieces; a file with more is not pushed."""
_MOST_BESIDE_LINES = 4000
"""So many more pieces than lines a file may have, that is short enough to have pieces."""
_MOST_COUNTED = 1 << 31
"""Of all words of a piece; a store has it in 32 bits."""
_WIDEST = 1 << 13


@dataclass(frozen=True)
class Entry:
    """What is known of a content, beside what its bytes say at once."""

    pieces: tuple[Piece, ...]
    vectors: Vectors


def seal(name: str, entries: Iterable[tuple[bytes, bytes, Entry]]) -> bytes:
    """The whole, to lie under this name: of contents by their key (`content.key_of`), each with its bytes."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sealed = {}
    for key, data, entry in entries:
        if (body := _body(entry)) is None:
            continue
        tag = _proof(b"tag", key, data, nonce)
        sealed[tag] = _cipher(_proof(b"key", key, data, nonce)).encrypt(_ONCE, body, _bound(name, nonce, tag))
    rows, at = [], _HEAD.size + _ROW.size * len(sealed)
    for tag, each in sorted(sealed.items()):
        rows.append(_ROW.pack(tag, at, len(each)))
        at += len(each)
    return b"".join([_HEAD.pack(_MAGIC, nonce, len(sealed)), *rows, *(each for _, each in sorted(sealed.items()))])


class Sealed:
    """The other end. Raises ConfigError, naming `origin`, where it is not what was pushed under this name. `width` is
    that of the embedder's vectors, 0 where that is not known."""

    def __init__(self, data: bytes, name: str, origin: str, width: int = 0) -> None:
        self._data, self._name, self._origin, self._width = memoryview(data), name, origin, width
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise self._refused("it does not begin as one")
        _, self._nonce, self._count = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + self._count * _ROW.size:
            raise self._refused("it is cut off")
        if self._count and sum(self._row(self._count - 1)[1:]) > len(data):
            raise self._refused("it is cut off")

    def of(self, key: bytes, data: bytes) -> Entry | None:
        """What was pushed of a content that is at hand; None where nothing was."""
        from cryptography.exceptions import InvalidTag

        tag = _proof(b"tag", key, data, self._nonce)
        at = bisect_left(range(self._count), tag, key=lambda at: self._row(at)[0])
        if at == self._count or self._row(at)[0] != tag:
            return None
        _, first, size = self._row(at)
        if first + size > len(self._data):
            raise self._refused("it is cut off")
        cipher, bound = _cipher(_proof(b"key", key, data, self._nonce)), _bound(self._name, self._nonce, tag)
        try:
            body = cipher.decrypt(_ONCE, bytes(self._data[first : first + size]), bound)
            return _entry(body, len(lines_of(text_of(data) or "")), self._width)
        except (InvalidTag, ValueError, TypeError, LookupError, AttributeError, struct.error, zlib.error):
            raise self._refused("an entry does not open") from None
        except RecursionError:
            raise self._refused("an entry is too deep") from None

    def _row(self, at: int) -> tuple[bytes, int, int]:
        """Where an entry lies, by its number: they are in order of their names, and read in place."""
        return _ROW.unpack_from(self._data, _HEAD.size + at * _ROW.size)

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._origin}: is not the index that was pushed there ({why}); delete it and push it again"
        )


def _proof(what: bytes, key: bytes, data: bytes, nonce: bytes) -> bytes:
    """That somebody holds a content, for one push: a hash of all its bytes that the nonce is the key of."""
    made = hashlib.blake2b(key, digest_size=32, key=nonce, person=b"etude index " + what)
    made.update(data)
    return made.digest()


def _bound(name: str, nonce: bytes, tag: bytes) -> bytes:
    return b"\0".join((_MAGIC, name.encode(), nonce + tag))


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingDependency(f"an index is shared with cryptography: {install_command('search')}") from None
    return AESGCM(key)


def _body(entry: Entry) -> bytes | None:
    """None for one that the other end would refuse for its length."""
    pieces = [[each.first, each.end, each.words, each.defined] for each in entry.pieces]
    said = json.dumps(pieces, separators=(",", ":")).encode()
    if len(said) > _MOST_TOLD:
        return None
    told = zlib.compress(said)
    return _SHAPE.pack(len(told), entry.vectors.shape[1]) + told + entry.vectors.tobytes()


def _entry(body: bytes, lines: int, wanted: int) -> Entry:
    """Raises ValueError and its like: whoever holds a content can seal anything for it."""
    size, width = _SHAPE.unpack_from(body)
    if not 0 < width <= _WIDEST or wanted not in (0, width):
        raise ValueError("its vectors are of no such width")
    opener = zlib.decompressobj()
    told = opener.decompress(body[_SHAPE.size : _SHAPE.size + size], _MOST_TOLD)
    if not opener.eof:
        raise ValueError("it is too long")
    rows = json.loads(told)
    if len(rows) > lines + _MOST_BESIDE_LINES:
        raise ValueError("it has more pieces than its file could have")
    pieces = tuple(_piece(each, lines) for each in rows)
    vectors = np.frombuffer(body, np.int8, offset=_SHAPE.size + size)
    return Entry(pieces, vectors.reshape(len(pieces), width))


def _piece(told: Any, lines: int) -> Piece:
    first, end, *counted = told
    if not (type(first) is int and type(end) is int and 0 <= first < end <= lines and len(counted) == 2):
        raise ValueError("a piece is outside of its file")
    for each in counted:
        if not all(type(times) is int and times > 0 for times in each.values()) or sum(each.values()) >= _MOST_COUNTED:
            raise ValueError("a word is there no whole number of times, or too often")
        "".join(each).encode()  # half of a pair is no text
    return Piece(first, end, Counter(counted[0]), Counter(counted[1]))

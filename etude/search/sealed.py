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
_MOST_OPENED = 1 << 26


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
        tag = _proof(b"tag", key, data, nonce)
        sealed[tag] = _cipher(_proof(b"key", key, data, nonce)).encrypt(_ONCE, _body(entry), _bound(name, nonce, tag))
    rows, at = [], _HEAD.size + _ROW.size * len(sealed)
    for tag, each in sorted(sealed.items()):
        rows.append(_ROW.pack(tag, at, len(each)))
        at += len(each)
    return b"".join([_HEAD.pack(_MAGIC, nonce, len(sealed)), *rows, *(each for _, each in sorted(sealed.items()))])


class Sealed:
    """The other end. Raises ConfigError, naming `origin`, where it is not what was pushed under this name."""

    def __init__(self, data: bytes, name: str, origin: str) -> None:
        self._data, self._name, self._origin = memoryview(data), name, origin
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise self._refused("it does not begin as one")
        _, self._nonce, count = _HEAD.unpack_from(data)
        if len(data) < _HEAD.size + count * _ROW.size:
            raise self._refused("it is cut off")
        rows = (_ROW.unpack_from(data, _HEAD.size + at * _ROW.size) for at in range(count))
        self._places = {tag: (at, at + size) for tag, at, size in rows}
        if any(end > len(data) for _, end in self._places.values()):
            raise self._refused("it is cut off")

    def of(self, key: bytes, data: bytes) -> Entry | None:
        """What was pushed of a content that is at hand; None where nothing was."""
        from cryptography.exceptions import InvalidTag

        tag = _proof(b"tag", key, data, self._nonce)
        if (place := self._places.get(tag)) is None:
            return None
        cipher, bound = _cipher(_proof(b"key", key, data, self._nonce)), _bound(self._name, self._nonce, tag)
        try:
            body = cipher.decrypt(_ONCE, bytes(self._data[slice(*place)]), bound)
            return _entry(body, len(lines_of(text_of(data) or "")))
        except (InvalidTag, ValueError, TypeError, KeyError, struct.error, zlib.error):
            raise self._refused("an entry does not open") from None

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


def _body(entry: Entry) -> bytes:
    pieces = [[each.first, each.end, each.words, each.defined] for each in entry.pieces]
    told = zlib.compress(json.dumps(pieces, separators=(",", ":")).encode())
    return _SHAPE.pack(len(told), entry.vectors.shape[1]) + told + entry.vectors.tobytes()


def _entry(body: bytes, lines: int) -> Entry:
    """Raises ValueError and its like: whoever holds a content can seal anything for it."""
    size, width = _SHAPE.unpack_from(body)
    opener = zlib.decompressobj()
    told = opener.decompress(body[_SHAPE.size : _SHAPE.size + size], _MOST_OPENED)
    if not opener.eof:
        raise ValueError("it is too long")
    pieces = tuple(_piece(each, lines) for each in json.loads(told))
    vectors = np.frombuffer(body, np.int8, offset=_SHAPE.size + size)
    return Entry(pieces, vectors.reshape(len(pieces), width))


def _piece(told: Any, lines: int) -> Piece:
    first, end, *counted = told
    if not (type(first) is int and type(end) is int and 0 <= first < end <= lines and len(counted) == 2):
        raise ValueError("a piece is outside of its file")
    for each in counted:
        if not all(type(times) is int and 0 < times < 1 << 31 for times in each.values()):
            raise ValueError("a word is there no whole number of times")
    return Piece(first, end, Counter(counted[0]), Counter(counted[1]))

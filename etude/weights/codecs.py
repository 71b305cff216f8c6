"""Lossless codecs of one chunk of bf16 bits against the same chunk of the parent version.

Owns the choice among them: under the policy `small` every codec that applies is tried, and the shortest payload wins;
under `fast` it is Rice's unless the raw bits are shorter. A payload is self-describing: its first byte is the codec's
id, the rest is that codec's stream. Decoding works in place on a copy of the parent's bits, so a sparse change costs
what changed, and trusts nothing in a payload: damage is a WeightError, and memory is bounded by the size of the chunk,
never by a number that a payload claims. Whether the *right* parent lay there is not known here; the hash of the
resulting tensor decides that (`subscriber`). Never touches files or the network.

| id | codec    | stream                                                                                       |
|----|----------|----------------------------------------------------------------------------------------------|
| 0  | empty    | nothing: no element changed                                                                  |
| 1  | raw      | the new bits, little endian                                                                  |
| 2  | xor_zstd | new XOR parent, all low bytes and then all high bytes, as one zstd frame with its size known |
| 3  | rice     | see `rice`                                                                                   |
| 4  | range    | see `range_coder`                                                                            |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt
import zstandard

from etude.errors import WeightError
from etude.weights import range_coder, rice

U16 = npt.NDArray[np.uint16]
Policy = Literal["small", "fast"]
_ZSTD_LEVEL = 1
"""Higher levels gain under 1% on byte planes of a XOR, and cost up to twice the time."""


class Codec(IntEnum):
    """Ids on the wire: never reused, never renumbered."""

    EMPTY = 0
    RAW = 1
    XOR_ZSTD = 2
    RICE = 3
    RANGE = 4


@dataclass(frozen=True)
class Encoded:
    """A chunk on its way: the payload (id byte included) and how many of its elements differ from the parent's."""

    codec: Codec
    payload: bytes
    changed: int


def encode(new: U16, parent: U16, policy: Policy = "small") -> Encoded:
    """The payload that turns `parent` into `new`, two contiguous arrays [N]: the shortest, or one soon made."""
    changed, stream = rice.encode(new, parent, less_than=2 * new.size)
    if changed == 0:
        return Encoded(Codec.EMPTY, bytes([Codec.EMPTY]), 0)
    codec, stream = (Codec.RICE, stream) if stream is not None else (Codec.RAW, _raw_stream(new, parent))
    if policy == "small":
        planes = _xor_zstd_stream(new, parent)
        if len(planes) < len(stream):
            codec, stream = Codec.XOR_ZSTD, planes
        _, coded = range_coder.encode(new, parent, less_than=len(stream))
        if coded is not None:
            codec, stream = Codec.RANGE, coded
    return Encoded(codec, bytes([codec]) + stream, changed)


def encode_with(codec: Codec, new: U16, parent: U16) -> bytes:
    """One codec's payload, however long it gets. Raises WeightError for a change that `empty` cannot express."""
    return bytes([codec]) + _ENCODERS[codec](new, parent)


def apply(payload: memoryview, chunk: U16) -> None:
    """Turn `chunk` [N], which holds the parent's bits, into the new ones, in place.

    Raises WeightError for a payload that no encoder wrote for N elements; `chunk` then holds garbage.
    """
    if len(payload) == 0:
        raise WeightError("a chunk's payload is empty: not even a codec's id")
    try:
        codec = Codec(payload[0])
    except ValueError:
        known = ", ".join(f"{known.value} {known.name.lower()}" for known in Codec)
        raise WeightError(f"codec {payload[0]} is unknown here ({known}): update Etude") from None
    _DECODERS[codec](payload[1:], chunk)


def _empty_stream(new: U16, parent: U16) -> bytes:
    if not np.array_equal(new, parent):
        raise WeightError("the empty codec cannot express a change")
    return b""


def _raw_stream(new: U16, parent: U16) -> bytes:
    return new.astype("<u2", copy=False).tobytes()


def _xor_zstd_stream(new: U16, parent: U16) -> bytes:
    pairs = (new ^ parent).astype("<u2", copy=False).view(np.uint8).reshape(-1, 2)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(pairs.T.tobytes())


def _rice_stream(new: U16, parent: U16) -> bytes:
    _, stream = rice.encode(new, parent, less_than=rice.HEADER.size + 16 * new.size + 1)  # 2^7 bits each always do
    if stream is None:
        raise AssertionError("a Rice stream outgrew its own bound")
    return stream


def _range_stream(new: U16, parent: U16) -> bytes:
    _, stream = range_coder.encode(new, parent, less_than=range_coder.most_bytes(new.size))
    if stream is None:
        raise AssertionError("a range code outgrew its own bound")
    return stream


def _apply_empty(stream: memoryview, chunk: U16) -> None:
    if len(stream):
        raise WeightError(f"an empty chunk carries {len(stream)} bytes")


def _apply_raw(stream: memoryview, chunk: U16) -> None:
    if len(stream) != 2 * chunk.size:
        raise WeightError(f"raw payload of {len(stream)} bytes does not fit {chunk.size} elements of 2 bytes")
    chunk[:] = np.frombuffer(stream, "<u2")


def _apply_xor_zstd(stream: memoryview, chunk: U16) -> None:
    try:
        claimed = zstandard.frame_content_size(stream)
        if claimed != 2 * chunk.size:  # checked first: decompress() allocates whatever the frame claims
            raise WeightError(f"zstd frame claims {claimed} bytes for {chunk.size} elements of 2 bytes")
        planes = zstandard.ZstdDecompressor().decompress(stream, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WeightError(f"zstd payload is damaged: {error}") from None
    pairs = np.frombuffer(planes, np.uint8).reshape(2, -1)
    chunk ^= np.ascontiguousarray(pairs.T).view("<u2").reshape(-1)


_ENCODERS: dict[Codec, Callable[[U16, U16], bytes]] = {
    Codec.EMPTY: _empty_stream,
    Codec.RAW: _raw_stream,
    Codec.XOR_ZSTD: _xor_zstd_stream,
    Codec.RICE: _rice_stream,
    Codec.RANGE: _range_stream,
}
_DECODERS: dict[Codec, Callable[[memoryview, U16], None]] = {
    Codec.EMPTY: _apply_empty,
    Codec.RAW: _apply_raw,
    Codec.XOR_ZSTD: _apply_xor_zstd,
    Codec.RICE: rice.apply,
    Codec.RANGE: range_coder.apply,
}

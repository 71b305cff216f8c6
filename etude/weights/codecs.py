"""Lossless codecs of one chunk of a tensor against the same chunk of the parent version.

Owns the choice among them: under the policy `small` every codec that applies is tried, and the shortest payload wins;
under `fast` it is Rice's unless the raw bits are shorter. A full copy has no parent to be told from: only what codes
the elements themselves is tried, and of a large model only the fastest of these. A payload is self-describing but for
the form of its elements (`forms`): its first byte is the codec's id, the rest is that codec's stream. Decoding works in
place on a copy of the parent's bits, so a sparse change costs what changed, and trusts nothing in a payload: damage is
a WeightError, and memory is bounded by the size of the chunk, never by a number that a payload claims. Whether the
*right* parent lay there is not known here; the hash of the resulting tensor decides that (`subscriber`). Never touches
files or the network.

| id | codec    | of       | stream                                                                                    |
|----|----------|----------|-------------------------------------------------------------------------------------------|
| 0  | empty    | all      | nothing: no element changed                                                               |
| 1  | raw      | all      | the new bits, little endian                                                               |
| 2  | xor_zstd | all      | new XOR parent, every lowest byte first, as one zstd frame with its size known            |
| 5  | halves   | fp32     | u32 bytes of the first, payload of the high halves, payload of the low halves (others)    |
| 6  | rice     | not fp32 | see `rice`                                                                                |
| 7  | range    | not fp32 | see `range_coder`                                                                         |
| 8  | whole    | not fp32 | see `whole`                                                                               |

3 and 4 were rice and range in the first two formats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Literal

import numpy as np
import zstandard

from etude.errors import WeightError
from etude.weights.forms import U16, Array, Form, form_of, to_wire

Policy = Literal["small", "fast"]
_ZSTD_LEVEL = 1
"""Higher levels gain under 1% on byte planes of a XOR, and cost up to twice the time."""
_FIRST = struct.Struct("<I")


class Codec(IntEnum):
    """Ids on the wire: never reused, never renumbered."""

    EMPTY = 0
    RAW = 1
    XOR_ZSTD = 2
    HALVES = 5
    RICE = 6
    RANGE = 7
    WHOLE = 8

    def of(self, form: Form) -> bool:
        """Whether elements of that form can be coded so."""
        if self in (Codec.RICE, Codec.RANGE, Codec.WHOLE):
            return not form.halves
        return self is not Codec.HALVES or form.halves


@dataclass(frozen=True)
class Encoded:
    """A chunk on its way: the payload (id byte included) and how many of its elements differ from the parent's."""

    codec: Codec
    payload: bytes
    changed: int


UNCHANGED = Encoded(Codec.EMPTY, bytes([Codec.EMPTY]), 0)


def _compiled() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules whose loops are compiled. To import numba takes longer than all else that a config or `etude weights
    log` needs of this room, so it waits for the first chunk."""
    from etude.weights import range_coder, rice, whole

    return range_coder, rice, whole


def encode(new: Array, parent: Array, policy: Policy = "small") -> Encoded:
    """The payload that turns `parent` into `new`, two contiguous arrays [N] of one form: the shortest, or one soon
    made.
    """
    form = form_of(new)
    if form.halves:
        return _encode_halves(new, parent, policy)
    range_coder, rice, whole = _compiled()
    symbols, before = form.symbols(new), form.symbols(parent)
    changed, stream = rice.encode(symbols, before, less_than=new.nbytes)
    if changed == 0:
        return UNCHANGED
    codec, stream = (Codec.RICE, stream) if stream is not None else (Codec.RAW, _raw_stream(new, parent))
    if policy == "small":
        planes = _xor_zstd_stream(new, parent)
        if len(planes) < len(stream):
            codec, stream = Codec.XOR_ZSTD, planes
        _, coded = range_coder.encode(symbols, before, len(stream), form.shift)
        if coded is not None:
            codec, stream = Codec.RANGE, coded
        coded = whole.encode(symbols, len(stream), form.whole_shift)
        if coded is not None:
            codec, stream = Codec.WHOLE, coded
    if symbols.size != new.size:
        changed = int(np.count_nonzero(new.view(np.uint8) != parent.view(np.uint8)))
    return Encoded(codec, bytes([codec]) + stream, changed)


def encode_copy(new: Array, fast: bool) -> Encoded:
    """The payload that turns zeros into `new`, a contiguous array [N]: the shorter of two, or, `fast`, the one that
    takes a fifth of the time and 4% more bytes.
    """
    form, parent = form_of(new), np.zeros_like(new)
    changed = int(np.count_nonzero(new if new.dtype.kind == "u" else new.view(np.uint8)))
    if changed == 0:
        return UNCHANGED
    codec, stream = Codec.XOR_ZSTD, _xor_zstd_stream(new, parent)
    if not fast and not form.halves:
        _, _, whole = _compiled()
        coded = whole.encode(form.symbols(new), len(stream), form.whole_shift)
        if coded is not None:
            codec, stream = Codec.WHOLE, coded
    if len(stream) >= new.nbytes:
        codec, stream = Codec.RAW, _raw_stream(new, parent)
    return Encoded(codec, bytes([codec]) + stream, changed)


def encode_with(codec: Codec, new: Array, parent: Array) -> bytes:
    """One codec's payload, however long it gets. Raises WeightError for a change that `empty` cannot express, and for a
    codec that is not of this form.
    """
    _require(codec, form_of(new))
    return bytes([codec]) + _ENCODERS[codec](new, parent)


def apply(payload: memoryview, chunk: Array) -> None:
    """Turn `chunk` [N], which holds the parent's bits, into the new ones, in place.

    Raises WeightError for a payload that no encoder wrote for N elements of its form; `chunk` then holds garbage.
    """
    if len(payload) == 0:
        raise WeightError("a chunk's payload is empty: not even a codec's id")
    try:
        codec = Codec(payload[0])
    except ValueError:
        known = ", ".join(f"{known.value} {known.name.lower()}" for known in Codec)
        raise WeightError(f"codec {payload[0]} is unknown here ({known}): update Etude") from None
    _require(codec, form_of(chunk))
    _DECODERS[codec](payload[1:], chunk)


def _require(codec: Codec, form: Form) -> None:
    if not codec.of(form):
        raise WeightError(f"codec {codec.value} {codec.name.lower()} does not code {form.name}")


# --- encoders ---------------------------------------------------------------------------------------------------------


def _empty_stream(new: Array, parent: Array) -> bytes:
    if new.tobytes() != parent.tobytes():
        raise WeightError("the empty codec cannot express a change")
    return b""


def _raw_stream(new: Array, parent: Array) -> bytes:
    return to_wire(new).tobytes()


def _xor_zstd_stream(new: Array, parent: Array) -> bytes:
    width = new.dtype.itemsize
    changes = to_wire(new).view(np.uint8) ^ to_wire(parent).view(np.uint8)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(changes.reshape(-1, width).T.tobytes())


def _rice_stream(new: Array, parent: Array) -> bytes:
    _, rice, _ = _compiled()
    symbols, before = form_of(new).symbols(new), form_of(parent).symbols(parent)
    most = rice.MOST_HEAD + 24 * symbols.size + 1  # 2^7 bits each, and as many if they are far, always do
    _, stream = rice.encode(symbols, before, less_than=most)
    if stream is None:
        raise AssertionError("a Rice stream outgrew its own bound")
    return stream


def _range_stream(new: Array, parent: Array) -> bytes:
    range_coder, _, _ = _compiled()
    form = form_of(new)
    symbols, before = form.symbols(new), form.symbols(parent)
    _, stream = range_coder.encode(symbols, before, range_coder.most_bytes(symbols.size), form.shift)
    if stream is None:
        raise AssertionError("a range code outgrew its own bound")
    return stream


def _whole_stream(new: Array, parent: Array) -> bytes:
    _, _, whole = _compiled()
    form = form_of(new)
    stream = whole.encode(form.symbols(new), whole.most_bytes(form.symbols(new).size), form.whole_shift)
    if stream is None:
        raise AssertionError("whole elements outgrew their own bound")
    return stream


def _halves_stream(new: Array, parent: Array, policy: Policy = "small") -> bytes:
    high, low = (encode(a, b, policy).payload for a, b in zip(_halves(new), _halves(parent), strict=True))
    return _FIRST.pack(len(high)) + high + low


def _encode_halves(new: Array, parent: Array, policy: Policy) -> Encoded:
    changed = int(np.count_nonzero(new != parent))
    if changed == 0:
        return UNCHANGED
    streams = {Codec.HALVES: _halves_stream(new, parent, policy)}
    if policy == "small":
        streams[Codec.XOR_ZSTD] = _xor_zstd_stream(new, parent)
    codec = min(streams, key=lambda codec: len(streams[codec]))
    if len(streams[codec]) >= new.nbytes:
        codec, streams[Codec.RAW] = Codec.RAW, _raw_stream(new, parent)
    return Encoded(codec, bytes([codec]) + streams[codec], changed)


def _halves(array: Array) -> tuple[U16, U16]:
    return (array >> 16).astype(np.uint16), (array & 0xFFFF).astype(np.uint16)


# --- decoders ---------------------------------------------------------------------------------------------------------


def _apply_empty(stream: memoryview, chunk: Array) -> None:
    if len(stream):
        raise WeightError(f"an empty chunk carries {len(stream)} bytes")


def _apply_raw(stream: memoryview, chunk: Array) -> None:
    if len(stream) != chunk.nbytes:
        had = f"{chunk.size} elements of {chunk.dtype.itemsize} bytes"
        raise WeightError(f"raw payload of {len(stream)} bytes does not fit {had}")
    chunk[:] = np.frombuffer(stream, form_of(chunk).wire)


def _apply_xor_zstd(stream: memoryview, chunk: Array) -> None:
    width = chunk.dtype.itemsize
    try:
        claimed = zstandard.frame_content_size(stream)
        if claimed != chunk.nbytes:  # checked first: decompress() allocates whatever the frame claims
            raise WeightError(f"zstd frame claims {claimed} bytes for {chunk.size} elements of {width} bytes")
        planes = zstandard.ZstdDecompressor().decompress(stream, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WeightError(f"zstd payload is damaged: {error}") from None
    changes = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(width, -1).T).reshape(-1)
    chunk[:] = (to_wire(chunk).view(np.uint8) ^ changes).view(form_of(chunk).wire)


def _apply_symbols(decode: Callable[[memoryview, U16, Form], None]) -> Callable[[memoryview, Array], None]:
    def apply_to(stream: memoryview, chunk: Array) -> None:
        form = form_of(chunk)
        symbols = form.symbols(chunk)
        decode(stream, symbols, form)
        form.restore(symbols, chunk)

    return apply_to


def _apply_halves(stream: memoryview, chunk: Array) -> None:
    if len(stream) < _FIRST.size:
        raise WeightError(f"a payload of halves has {len(stream)} bytes, less than its header")
    (first,) = _FIRST.unpack_from(stream)
    if first > len(stream) - _FIRST.size:
        raise WeightError(f"a payload of halves claims {first} bytes for the first, and has {len(stream)} for both")
    high, low = _halves(chunk)
    apply(stream[_FIRST.size : _FIRST.size + first], high)
    apply(stream[_FIRST.size + first :], low)
    chunk[:] = high.astype(np.uint32) << 16 | low


_ENCODERS: dict[Codec, Callable[[Array, Array], bytes]] = {
    Codec.EMPTY: _empty_stream,
    Codec.RAW: _raw_stream,
    Codec.XOR_ZSTD: _xor_zstd_stream,
    Codec.HALVES: _halves_stream,
    Codec.RICE: _rice_stream,
    Codec.RANGE: _range_stream,
    Codec.WHOLE: _whole_stream,
}
_DECODERS: dict[Codec, Callable[[memoryview, Array], None]] = {
    Codec.EMPTY: _apply_empty,
    Codec.RAW: _apply_raw,
    Codec.XOR_ZSTD: _apply_xor_zstd,
    Codec.HALVES: _apply_halves,
    Codec.RICE: _apply_symbols(lambda stream, symbols, form: _compiled()[1].apply(stream, symbols)),
    Codec.RANGE: _apply_symbols(lambda stream, symbols, form: _compiled()[0].apply(stream, symbols, form.shift)),
    Codec.WHOLE: _apply_symbols(lambda stream, symbols, form: _compiled()[2].apply(stream, symbols, form.whole_shift)),
}

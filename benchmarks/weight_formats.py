"""The formats that weight deltas are shipped in, ours and our peers', for `benchmarks/weights.py`.

Each encodes one tensor's bf16 bits against its parent's, and gives them back. Ours go through `etude.weights`; the
peers' are written here from what their authors publish, and from none of their code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import zstandard

from etude.weights import codecs
from etude.weights.forms import U16

COLUMNS = 4096
CHUNK = 1 << 20


def chunks(array: U16) -> list[U16]:
    return [array[start : start + CHUNK] for start in range(0, array.size, CHUNK)]


# --- the formats: encode(new, parent) -> payloads, decode(payloads, parent) -> new ----------------------------------


def with_codec(codec: codecs.Codec) -> Callable[[U16, U16], list[bytes]]:
    def encode(new: U16, parent: U16) -> list[bytes]:
        return [codecs.encode_with(codec, n, p) for n, p in zip(chunks(new), chunks(parent), strict=True)]

    return encode


def etude_decode(payloads: list[bytes], parent: U16) -> U16:
    new = parent.copy()
    for payload, chunk in zip(payloads, chunks(new), strict=True):
        codecs.apply(memoryview(payload), chunk)
    return new


def xor_encode(new: U16, parent: U16) -> list[bytes]:
    """XOR words as they are, zstd-3: what several frameworks ship."""
    compressor = zstandard.ZstdCompressor(level=3)
    return [compressor.compress((n ^ p).view(np.uint8)) for n, p in zip(chunks(new), chunks(parent), strict=True)]


def xor_decode(payloads: list[bytes], parent: U16) -> U16:
    new = parent.copy()
    for payload, chunk in zip(payloads, chunks(new), strict=True):
        chunk ^= np.frombuffer(zstandard.ZstdDecompressor().decompress(payload), np.uint16)
    return new


def pairs_encode(new: U16, parent: U16) -> list[bytes]:
    """An int32 index and the raw value of every change, as they are."""
    at = np.flatnonzero(new != parent)
    return [at.astype(np.int32).tobytes(), new[at].tobytes()]


def pairs_decode(payloads: list[bytes], parent: U16) -> U16:
    new = parent.copy()
    new[np.frombuffer(payloads[0], np.int32)] = np.frombuffer(payloads[1], np.uint16)
    return new


def snapshot_encode(new: U16, parent: U16) -> list[bytes]:
    """The whole new weights, zstd-3; the parent does not help."""
    return [zstandard.ZstdCompressor(level=3).compress(new.tobytes())]


def snapshot_decode(payloads: list[bytes], parent: U16) -> U16:
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(payloads[0]), np.uint16)


def coo_encode(new: U16, parent: U16) -> list[bytes]:
    """Row deltas (u8), columns relative to the last one in a row (u16) and raw values, one zstd-1 frame: PULSE's layout
    as its authors describe it (arXiv 2602.03839); our own code.
    """
    at = np.flatnonzero(new != parent)
    rows, columns = np.divmod(at, COLUMNS)
    row_deltas = np.diff(rows, prepend=0)  # more than 255 rows without a change do not occur in what is measured
    if row_deltas.size and row_deltas.max() > 255:
        raise ValueError("this density needs an escape for row deltas, which this layout as written here has not")
    column_deltas = np.where(row_deltas == 0, np.diff(columns, prepend=0), columns)
    streams = row_deltas.astype(np.uint8).tobytes(), column_deltas.astype(np.uint16).tobytes(), new[at].tobytes()
    return [len(at).to_bytes(8, "little"), zstandard.ZstdCompressor(level=1).compress(b"".join(streams))]


def coo_decode(payloads: list[bytes], parent: U16) -> U16:
    count = int.from_bytes(payloads[0], "little")
    data = zstandard.ZstdDecompressor().decompress(payloads[1])
    row_deltas = np.frombuffer(data, np.uint8, count)
    column_deltas = np.frombuffer(data, np.uint16, count, offset=count).astype(np.int64)
    values = np.frombuffer(data, np.uint16, count, offset=3 * count)
    rows = np.cumsum(row_deltas, dtype=np.int64)
    running = np.cumsum(column_deltas)
    starts = np.flatnonzero(np.concatenate([[True], row_deltas[1:] != 0])) if count else np.empty(0, np.int64)
    before = np.repeat(running[starts] - column_deltas[starts], np.diff(starts, append=count))
    new = parent.copy()
    new[rows * COLUMNS + running - before] = values
    return new


FORMATS: dict[str, tuple[Callable[[U16, U16], list[bytes]], Callable[[list[bytes], U16], U16]]] = {
    "R": (with_codec(codecs.Codec.RICE), etude_decode),
    "A": (with_codec(codecs.Codec.RANGE), etude_decode),
    "pulse": (coo_encode, coo_decode),
    "xor_zstd": (xor_encode, xor_decode),
    "index_value": (pairs_encode, pairs_decode),
    "snapshot": (snapshot_encode, snapshot_decode),
}
"""Name → encode(new, parent) and decode(payloads, parent), of one tensor's bits [N]."""

"""Codec R against the formats peers ship, on one synthetic update; then a whole publish and fetch of the default model.

    python benchmarks/weights_codec.py [--elements 16777216] [--repeats 5]

Weights are normal with deviation 0.02; an update adds lr * u, u normal, to fp32 masters and rounds to bf16. `rl` is
tuned to change 2% of the weights, `muon` is lr 1e-3, which changes nearly all. Both are synthetic: what a real run
changes is in its own log (`etude weights log`). `etude` is what a publisher does, which tries every codec and takes the
shortest; `rice` is codec R alone. Throughput is raw bf16 bytes per CPU second of one thread, best of the repeats; every
format is decoded and compared. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from etude.records import Version
from etude.weights import codecs
from etude.weights.manifest import U16
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.store import open_store
from etude.weights.subscriber import Subscriber

SIGMA = 0.02
UPDATES = {"rl": 5.65e-7, "muon": 1e-3}
COLUMNS = 4096
CHUNK = 1 << 20


def to_bf16(values: np.ndarray) -> U16:
    """Bits of the nearest bf16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def chunks(array: U16) -> list[U16]:
    return [array[start : start + CHUNK] for start in range(0, array.size, CHUNK)]


# --- the formats: encode(new, parent) -> payloads, decode(payloads, parent) -> new ----------------------------------


def etude_encode(new: U16, parent: U16) -> list[bytes]:
    return [codecs.encode(n, p).payload for n, p in zip(chunks(new), chunks(parent), strict=True)]


def rice_encode(new: U16, parent: U16) -> list[bytes]:
    return [codecs.encode_with(codecs.Codec.RICE, n, p) for n, p in zip(chunks(new), chunks(parent), strict=True)]


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


def coo_encode(new: U16, parent: U16) -> list[bytes]:
    """Row deltas (u8), columns relative to the last one in a row (u16) and raw values, one zstd-1 frame: PULSE's layout
    as its authors describe it (arXiv 2602.03839); our own code.
    """
    at = np.flatnonzero(new != parent)
    rows, columns = np.divmod(at, COLUMNS)
    row_deltas = np.diff(rows, prepend=0)
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


FORMATS: dict[str, tuple[Callable[..., list[bytes]], Callable[..., U16]]] = {
    "etude": (etude_encode, etude_decode),
    "rice": (rice_encode, etude_decode),
    "xor_zstd3": (xor_encode, xor_decode),
    "coo_zstd1": (coo_encode, coo_decode),
}


# --- measuring ----------------------------------------------------------------------------------------------------


def best_of(repeats: int, call: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU seconds of a call, and its result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        started = time.process_time()
        result = call()
        best = min(best, time.process_time() - started)
    return best, result


def compare(elements: int, lr: float, repeats: int) -> dict[str, Any]:
    """Every format on one update."""
    rng = np.random.default_rng(0)
    master = rng.normal(0, SIGMA, elements).astype(np.float32)
    parent, new = to_bf16(master), to_bf16(master + lr * rng.normal(size=elements).astype(np.float32))
    changed = int(np.count_nonzero(parent != new))
    report: dict[str, Any] = {"changed": round(changed / elements, 5)}
    for name, (encode, decode) in FORMATS.items():
        encode_s, payloads = best_of(repeats, lambda encode=encode: encode(new, parent))
        decode_s, back = best_of(repeats, lambda decode=decode, payloads=payloads: decode(payloads, parent))
        if not np.array_equal(back, new):
            raise AssertionError(f"{name} did not give the weights back")
        size = sum(map(len, payloads))
        report[name] = {
            "bits_per_change": round(8 * size / changed, 2),
            "ratio": round(2 * elements / size, 2),
            "enc_MBps": round(2e-6 * elements / encode_s),
            "dec_MBps": round(2e-6 * elements / decode_s),
        }
    return report


@dataclass
class Model:
    """The default 1.5M-parameter model's tensors, as fp32 masters."""

    layers: int = 4
    width: int = 128

    def masters(self) -> dict[str, np.ndarray]:
        width, rng = self.width, np.random.default_rng(1)
        layer = {
            "q": (width, width),
            "k": (width // 2, width),
            "v": (width // 2, width),
            "o": (width, width),
            "norm": (2, width),
            "router": (8, width),
            "gate": (8, width, 96),
            "up": (8, width, 96),
            "down": (8, 96, width),
        }
        shapes = {f"layers.{i}.{name}": shape for i in range(self.layers) for name, shape in layer.items()}
        shapes |= {"embed": (1024, width), "norm": (width,)}
        return {name: rng.normal(0, SIGMA, shape).astype(np.float32) for name, shape in shapes.items()}


def whole_path(lr: float, versions: int) -> dict[str, Any]:
    """Median CPU of a publish and of a fetch through a directory store, hashes, manifests and checks included."""
    masters, rng = Model().masters(), np.random.default_rng(2)
    publish_ms, fetch_ms, stored = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory)
        publisher, subscriber = Publisher(store, PublisherConfig(anchor_every=1 << 20)), Subscriber(store)
        held, version = None, None
        for target in map(Version, range(versions)):
            bits = {name: to_bf16(master) for name, master in masters.items()}
            started = time.process_time()
            published = publisher.publish(target, bits)
            middle = time.process_time()
            held, _ = subscriber.fetch(held, version, target)
            ended = time.process_time()
            version = target
            if published.kind == "delta":
                publish_ms.append(1e3 * (middle - started))
                fetch_ms.append(1e3 * (ended - middle))
                stored.append(sum(store.list(f"versions/{target:08d}/").values()))
            for master in masters.values():
                master += lr * rng.normal(size=master.shape).astype(np.float32)
    return {
        "parameters": sum(master.size for master in masters.values()),
        "publish_cpu_ms": round(float(np.median(publish_ms)), 2),
        "fetch_cpu_ms": round(float(np.median(fetch_ms)), 2),
        "bytes_per_version": int(np.median(stored)),
        "raw_bytes": published.raw_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    report: dict[str, Any] = {"elements": options.elements}
    for update, lr in UPDATES.items():
        report[update] = compare(options.elements, lr, options.repeats) | {"model": whole_path(lr, 12)}
        print(f"{update}: {100 * report[update]['changed']:.2f}% of the weights change")
        for name in FORMATS:
            row = report[update][name]
            print(
                f"  {name:10} {row['ratio']:7.2f}x  {row['bits_per_change']:6.2f} bits/change  "
                f"encode {row['enc_MBps']:5} MB/s  decode {row['dec_MBps']:5} MB/s"
            )
        model = report[update]["model"]
        print(
            f"  {model['parameters'] / 1e6:.1f}M model: {model['bytes_per_version']} bytes a version, all told; "
            f"publish {model['publish_cpu_ms']} ms, fetch {model['fetch_cpu_ms']} ms of CPU"
        )
    print(json.dumps(report))


if __name__ == "__main__":
    main()

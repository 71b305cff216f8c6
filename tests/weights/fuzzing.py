"""Hostile bytes for everything that reads a store: payloads, manifests, signatures, pins, and whole stores.

    python tests/weights/fuzzing.py [--seconds 600] [--seed 0] [--case N]

Each case is made from the seed and its number, so that a failure is repeated by `--case`. What may come of one is the
right answer or a WeightError: no other exception, no byte written beside a chunk, no manifest accepted that makes other
weights, no hang (a watchdog ends the process), no memory beyond what the input justifies. The command compiles the
decoders with bounds checks, which make an over-read an IndexError. The last line is JSON: cases and refusals of each
kind. Stands by itself: the tests run a few seconds of it.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import os
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from weight_samples import make_chain, same

from etude.errors import WeightError
from etude.records import Version
from etude.weights import codecs
from etude.weights.chain import Chain, key_of, steps_of
from etude.weights.codecs import Codec
from etude.weights.delta import apply_delta, copy_bits
from etude.weights.forms import FORMS
from etude.weights.manifest import MOST_MANIFEST_BYTES, dump, load
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.signing import Keys
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
LONGEST_CASE_S = 60
EDGES = [
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    65535,
    65536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
]
SOME_JSON = [None, True, False, -1, 0.5, 1e308, "", "\0", "0" * 64, "f" * 32, [], {}, [[]], "bf16", "e4m3", 1 << 70]


class Broken(AssertionError):
    """Something came of hostile input that must not."""


class Mutator:
    """Damage, drawn from one case's own randomness."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def bytes(self, data: bytes) -> bytes:
        """One to four changes that bytes suffer or an enemy makes."""
        out = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            at, size = self.rng.randint(0, len(out)), self.rng.choice([1, 1, 2, 4, 8, 64])
            kind = self.rng.randrange(7)
            if kind == 0 and at < len(out):
                out[at] ^= 1 << self.rng.randrange(8)
            elif kind == 1:
                out[at : at + size] = self.rng.randbytes(min(size, len(out) - at))
            elif kind == 2:
                out[at:at] = self.rng.randbytes(size)
            elif kind == 3:
                del out[at : at + size]
            elif kind == 4:
                del out[at:]
            elif kind == 5:
                out[at:at] = out[at : at + size]
            elif len(out) >= 4:
                at = self.rng.randrange(len(out) - 3)
                out[at : at + 4] = struct.pack("<I", self.rng.choice(EDGES) & 0xFFFFFFFF)
        return bytes(out)

    def json(self, tree: Any) -> Any:
        """A copy with one to three nodes replaced, removed, repeated or exchanged."""
        tree = copy.deepcopy(tree)
        for _ in range(self.rng.randint(1, 3)):
            parent, key = self.rng.choice(_nodes(tree))
            kind, value = self.rng.randrange(6), parent[key]
            if kind == 0:
                parent[key] = self.rng.choice([*SOME_JSON, *EDGES])
            elif kind == 1 and isinstance(value, int):
                parent[key] = value + self.rng.choice([-1, 1, 100])
            elif kind == 2 and isinstance(value, str) and value:
                at = self.rng.randrange(len(value))
                parent[key] = value[:at] + self.rng.choice("0123456789abcdef/\0é") + value[at + 1 :]
            elif kind == 3 and isinstance(value, list) and value:
                value.insert(self.rng.randrange(len(value)), self.rng.choice(value))
            elif kind == 4:
                del parent[key]
            else:
                other, where = self.rng.choice(_nodes(tree))
                parent[key] = copy.deepcopy(other[where])
            if not _nodes(tree):
                break
        return tree


def _nodes(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything below the top."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [node for key in keys for node in [(tree, key), *_nodes(tree[key])]]


class _Small(SubscriberConfig):
    max_raw_bytes: ClassVar[int] = 1 << 20


class Fuzzer:
    """Runs cases; `counts` holds how many of each kind there were, and how many were refused."""

    def __init__(self, seed: int) -> None:
        self.seed, self.counts = seed, Counter[str]()
        signer = Ed25519PrivateKey.from_private_bytes(random.Random(seed).randbytes(32))
        self.keys = Keys(signer, (signer.public_key().public_bytes_raw(),))
        self.trusting = _Small()
        self.chain = make_chain(9, seed)
        self.stores = {"signed": self._published(self.keys), "plain": self._published(Keys())}
        self.frames = self._frames()
        self.kinds: list[Callable[[random.Random], bool]] = [
            self.payload, self.payload, self.payload, self.invented, self.frame, self.tree, self.tree, self.envelope,
            self.store, self.store, self.pin,
        ]  # fmt: skip

    def run(self, seconds: float, first: int = 0, last: int | None = None) -> int:
        """Cases from `first` on for so long, or to `last`; returns how many. Raises Broken, naming the case."""
        started, case = time.monotonic(), first
        while time.monotonic() - started < seconds and (last is None or case <= last):
            self.case(case)
            case += 1
        return case - first

    def case(self, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choice(self.kinds)
        faulthandler.dump_traceback_later(LONGEST_CASE_S, exit=True)
        try:
            refused = kind(rng)
        except Exception as error:
            raise Broken(f"case {number} (seed {self.seed}, {kind.__name__}): {error!r}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.counts[kind.__name__] += 1
        self.counts[f"{kind.__name__}_refused"] += refused

    # --- payloads -----------------------------------------------------------------------------------------------------

    def payload(self, rng: random.Random) -> bool:
        """A real payload of any form and codec, damaged."""
        form = rng.choice(list(FORMS.values()))
        plain = np.dtype(f"u{form.dtype.itemsize}")
        draw = np.random.default_rng(rng.getrandbits(64))
        parent = draw.integers(0, 1 << 8 * plain.itemsize, rng.randint(0, 400), plain)
        if rng.random() < 0.5:
            parent[:] = parent[:1].sum() & 0x3F  # alike: long runs, one class
        step = draw.integers(0, 4, parent.size, plain)
        new = np.where(draw.random(parent.size) < rng.random(), parent + step, parent).astype(plain)
        parent, new = parent.view(form.dtype), new.view(form.dtype)
        codec = rng.choice([codec for codec in Codec if codec.of(form) and codec is not Codec.EMPTY])
        genuine = codecs.encode_with(codec, new, parent)
        damaged = Mutator(rng).bytes(genuine)
        if rng.random() < 0.2:
            other = codecs.encode(new, parent).payload
            damaged = damaged[: rng.randint(0, len(damaged))] + other[rng.randint(0, len(other)) :]
        return _applied(damaged, parent)

    def invented(self, rng: random.Random) -> bool:
        """A header that claims something near the edge, and any stream."""
        form, size = rng.choice(list(FORMS.values())), rng.randint(0, 300)
        claims = [size, 2 * size, *EDGES][rng.randrange(2 + len(EDGES))] & 0xFFFFFFFF
        stream = bytes(rng.choices(range(rng.choice([2, 4, 256])), k=rng.randint(0, 80)))
        classes = bytes(sorted(stream[:2]))
        head = rng.choice([
            struct.pack("<IBB", claims, rng.randrange(18), rng.randrange(18)),
            struct.pack("<IBH", claims, rng.randrange(18), rng.choice([0, 1, 2, size, 300])) + classes,
            struct.pack("<I", claims) + bytes([rng.randrange(7)]),
            b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", rng.choice(EDGES) & ((1 << 64) - 1)),
        ])  # fmt: skip
        return _applied(bytes([rng.randrange(8)]) + head + stream, np.zeros(size, form.dtype))

    # --- manifests ----------------------------------------------------------------------------------------------------

    def _frames(self) -> dict[str, tuple[bytes, Any]]:
        """Genuine manifests by name, and each with its payloads' chain read back."""
        chain = Chain(self.stores["plain"])
        return {
            f"{version}/{name}": (dump(delta), delta)
            for version, names in chain.listing().items()
            for name in steps_of(names)
            for delta in [chain.manifest(version, name)]
        }

    def frame(self, rng: random.Random) -> bool:
        """The bytes of a manifest, damaged before or after its compression."""
        frame, delta = self.frames[rng.choice(sorted(self.frames))]
        if rng.random() < 0.5:
            return self._read_manifest(Mutator(rng).bytes(frame), delta)
        text = Mutator(rng).bytes(zstandard.decompress(frame))
        if rng.random() < 0.05:
            text = rng.choice([b"[" * 200_000, b'{"tensors":' * 10_000, b"9" * 100_000, b'"' + b"a" * (1 << 20) + b'"'])
        return self._read_manifest(zstandard.ZstdCompressor(write_checksum=True).compress(text), delta)

    def tree(self, rng: random.Random) -> bool:
        """The JSON of a manifest with other values, missing and repeated parts, in a flawless frame."""
        frame, delta = self.frames[rng.choice(sorted(self.frames))]
        forged = Mutator(rng).json(json.loads(zstandard.decompress(frame)))
        text = json.dumps(forged).encode()
        return self._read_manifest(zstandard.ZstdCompressor(write_checksum=True).compress(text), delta)

    def _read_manifest(self, frame: bytes, genuine: Any) -> bool:
        """Whether it is refused; if not, it must make the genuine weights or be refused while it is applied."""
        try:
            delta = load(frame, "fuzz")
            if delta.raw_bytes > 1 << 20:
                return True  # `zeros_for` refuses it
            payloads = Chain(self.stores["plain"]).payloads(delta)
            base = self.chain[delta.parent] if delta.parent is not None and delta.parent < len(self.chain) else None
            shadow = copy_bits(base) if base is not None else {n: np.zeros_like(a) for n, a in self.chain[0].items()}
            apply_delta(delta, payloads, shadow)
            if delta.root != genuine.root:
                raise WeightError("another root than the wanted version's")
        except WeightError:
            return True
        if not same(shadow, self.chain[genuine.version]):
            raise Broken("a forged manifest was accepted")
        return False

    def envelope(self, rng: random.Random) -> bool:
        """A signed manifest, changed anywhere: never accepted."""
        frame, _ = self.frames[rng.choice(sorted(self.frames))]
        sealed = self.keys.seal(frame)
        damaged = Mutator(rng).bytes(sealed) if rng.random() < 0.7 else sealed[:105] + Mutator(rng).bytes(frame)
        try:
            opened = self.keys.open(damaged, "fuzz")
        except WeightError:
            return True
        if damaged != sealed or opened != frame:
            raise Broken("a changed manifest passed for signed")
        return False

    # --- stores -------------------------------------------------------------------------------------------------------

    def _published(self, keys: Keys) -> Store:
        publisher = Publisher(
            open_store("memory://"), PublisherConfig(merge="always"), keys,
            chunk_elements=300, merge_over=(2, 4), anchor_every=3,
        )  # fmt: skip
        for version, bits in enumerate(self.chain):
            publisher.publish(V(version), bits)
        chain = publisher.chain
        for version, names in chain.listing().items():  # nothing of this hour and run: a case is repeated by its number
            for name in steps_of(names):
                delta = Chain(chain.store).manifest(version, name).model_copy(update={"time": 0.0, "chain": "0" * 32})
                chain.store.put(key_of(version, name), keys.seal(dump(delta)))
        return chain.store

    def store(self, rng: random.Random) -> bool:
        """A store in which objects are damaged, missing, exchanged, replayed: the right version, or none."""
        kind = rng.choice(sorted(self.stores))
        source, target = self.stores[kind], open_store("memory://")
        objects = {key: source.get(key, MOST_MANIFEST_BYTES) for key in source.list("versions/")}
        mutate = Mutator(rng)
        for _ in range(rng.randint(1, 6)):
            one, other = rng.choice(sorted(objects)), rng.choice(sorted(objects))
            change = rng.randrange(5)
            if change == 0:
                objects[one] = mutate.bytes(objects[one])
            elif change == 1:
                del objects[one]
            elif change == 2:
                objects[one], objects[other] = objects[other], objects[one]
            elif change == 3:
                objects[one] = objects[other]
            else:
                objects[f"versions/{rng.randint(0, 12):08d}/{other.rsplit('/', 1)[1]}"] = objects[other]
        for key, data in objects.items():
            target.put(key, data)
        refused = False
        subscriber = Subscriber(target, self.trusting, self.keys if kind == "signed" else None)
        for _ in range(3):
            held, wanted = rng.choice([None, *range(len(self.chain))]), rng.randrange(len(self.chain))
            base = (None, None) if held is None else (self.chain[held], V(held))
            try:
                bits, _ = subscriber.fetch(*base, V(wanted))
            except WeightError:
                refused = True
                continue
            if not same(bits, self.chain[wanted]):
                raise Broken(f"version {wanted} was accepted and is not what was published")
        return refused

    def pin(self, rng: random.Random) -> bool:
        """A pin of any bytes holds, or has run out; it never stops who looks."""
        store, body = open_store("memory://"), b'{"until": 1e12, "why": "fuzz"}'
        store.put("pins/00000003/fuzz", Mutator(rng).bytes(body))
        store.put("pins/00000003/" + rng.choice(["a", "é", "a" * 200]), b"")
        return "unreadable" in {pin.why for pin in Pins(Chain(store)).live()}


def _applied(payload: bytes, parent: np.ndarray) -> bool:
    """Whether it is refused. Raises Broken for a byte written beside the chunk, or for two different answers."""
    results = []
    for fill in (0xAB, 0x54):
        arena = np.full(parent.nbytes + 128, fill, np.uint8)
        chunk = arena[64 : 64 + parent.nbytes].view(parent.dtype)
        chunk[:] = parent
        try:
            codecs.apply(memoryview(payload), chunk)
            results.append(chunk.tobytes())
        except WeightError:
            results.append(None)
        if (arena[:64] != fill).any() or (arena[-64:] != fill).any():
            raise Broken("a decoder wrote beside its chunk")
    if results[0] != results[1]:
        raise Broken("a decoder read what is not its own")
    return results[0] is None


def main() -> int:
    """The command; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if os.environ.get("NUMBA_BOUNDSCHECK") != "1":
            checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": directory}
            return os.spawnve(os.P_WAIT, sys.executable, [sys.executable, *sys.argv], os.environ | checked)
        fuzzer, started = Fuzzer(options.seed), time.monotonic()
        one = {"first": options.case, "last": options.case} if options.case is not None else {}
        cases = fuzzer.run(options.seconds, **one)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        report = {
            "seed": options.seed,
            "cases": cases,
            "seconds": round(time.monotonic() - started, 1),
            "peak_MiB": peak,
        }
        print(json.dumps(report | dict(sorted(fuzzer.counts.items()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

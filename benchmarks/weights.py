"""What a version costs to ship: Etude's codecs and its peers' formats, on the same updates.

    python benchmarks/weights.py [--steps 24] [--amortised-steps 200] [--rates 1e-6 3e-6 1e-5] [--repeats 3]
    python benchmarks/weights.py --synthetic [--elements 4194304]

The updates are those of real runs: the quickstart's recipe with AdamW at each learning rate, whose versions are read
back from the run's own weight store. Masters are fp32 and start at the base's bf16 values. Embeddings are left out of
the figures by rate, for most of their rows see no gradient; the last two thirds of the steps are measured. With
`--synthetic`, normal weights of deviation 0.02 move by lr * u, u normal, instead: fast, and nobody's training.

`changed` is the share of weights that change, `bits_X` are bits a changed weight, `ratio_X` raw bytes over payload
bytes; `bound_A` are the bits no coder goes below that knows each weight's old exponent and its tensor. `mxfp8_ratio` is
the same for the experts' matrices as MXFP8 codes and scales, against their own size. `amortised_ratio` is raw bytes
over everything in the store after `--amortised-steps` versions at the middle rate: payloads, manifests, merged deltas
and anchors. Throughput is raw bf16 bytes a CPU second of one thread, best of the repeats. Every payload is decoded and
compared. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from weight_formats import FORMATS

from etude.kernels import mxfp8
from etude.weights import codecs, range_coder, rice
from etude.weights.inspect import log
from etude.weights.manifest import U16, Bits
from etude.weights.store import open_store
from etude.weights.subscriber import Subscriber

ROOT = Path(__file__).resolve().parent.parent
Update = tuple[Bits, Bits]
"""The weights of a version and of the one before."""


# --- updates ------------------------------------------------------------------------------------------------------


def train(lr: float, steps: int, directory: Path) -> Path:
    """A run of so many steps with AdamW at that rate; returns its weight store."""
    settings = {
        "trainer.optimizer.name": "adamw",
        "trainer.optimizer.lr": lr,
        "trainer.final_lr_share": 1.0,
        "rollouts.groups_per_step": 2,
        "rollouts.max_steps": steps,
        "rollouts.max_minutes": 60.0,
        "rollouts.total_minutes": 90.0,
        "rollouts.checkpoint_every": 1000,
        "publisher.keep": steps + 2,
        "evaluation.per_rung": 1,
        "evaluation.heldout_per_rung": 0,
        "evaluation.real": "false",
        "control.enabled": "false",
    }
    command = [sys.executable, "-m", "etude.cli.main", "train", "recipes/quickstart.toml", "--out", str(directory)]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
    return directory / "weights"


def versions(store: Path) -> Iterator[Bits]:
    """The weights of every version, from the first on."""
    subscriber = Subscriber(open_store(store))
    bits, held = None, None
    for version in subscriber.chain.versions():
        bits, _ = subscriber.fetch(bits, held, version)
        held = version
        yield bits


def updates(store: Path) -> list[Update]:
    """Each step's update without embeddings, of the last two thirds of the steps."""
    every = [{name: array for name, array in bits.items() if "embed" not in name} for bits in versions(store)]
    pairs = list(zip(every[1:], every, strict=False))
    return pairs[len(pairs) // 3 :]


def synthetic(lr: float, elements: int) -> list[Update]:
    rng = np.random.default_rng(0)
    master = rng.normal(0, 0.02, elements).astype(np.float32)
    moved = master + np.float32(lr) * rng.normal(size=elements).astype(np.float32)
    return [({"matrix": to_bf16(moved)}, {"matrix": to_bf16(master)})]


def to_bf16(values: np.ndarray) -> U16:
    """Bits of the nearest bf16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


# --- measuring ----------------------------------------------------------------------------------------------------


def compare(pairs: list[Update]) -> dict[str, Any]:
    """Every format on the same updates, tensor by tensor; and the bound."""
    sizes, bound = dict.fromkeys(FORMATS, 0), 0.0
    elements = changed = 0
    for new, parent in pairs:
        for name in new:
            after, before = new[name].reshape(-1), parent[name].reshape(-1)
            elements += after.size
            changed += int(np.count_nonzero(after != before))
            bound += bound_given_exponents(after, before)
            for format_name, (encode, decode) in FORMATS.items():
                payloads = encode(after, before)
                if not np.array_equal(decode(payloads, before), after):
                    raise AssertionError(f"{format_name} did not give {name} back")
                sizes[format_name] += sum(map(len, payloads))
    report: dict[str, Any] = {"changed": round(changed / elements, 5), "bound_A": round(bound / changed, 3)}
    for name, size in sizes.items():
        report[f"bits_{name}"] = round(8 * size / changed, 3)
        report[f"ratio_{name}"] = round(2 * elements / size, 1)
    return report


def bound_given_exponents(new: U16, parent: U16) -> float:
    """Entropy in bits of the steps given the old exponents: by counting, within one tensor."""
    exponents = (parent >> 7 & 255).astype(np.int64)
    steps = _ordered(new) - _ordered(parent)
    pairs, counts = np.unique(exponents << 20 | steps + (1 << 17), return_counts=True)
    total = np.bincount(exponents, minlength=256)[pairs >> 20]
    return float(-(counts * np.log2(counts / total)).sum())


def _ordered(bits: U16) -> np.ndarray:
    value = bits.astype(np.int64)
    return np.where(value < 0x8000, value, -(value & 0x7FFF) - 1)


def mxfp8_ratio(pairs: list[Update]) -> float | None:
    """Bytes of the experts' MXFP8 form over the bytes of its deltas; None where no matrix is an expert's."""
    raw = size = 0
    for new, parent in pairs:
        for name in (name for name in new if new[name].ndim == 3):  # stacked experts: [expert, rows, columns]
            after, before = _mxfp8(new[name]), _mxfp8(parent[name])
            for codes, old, shift in zip(after, before, (0, 7), strict=True):
                raw += codes.size
                size += len(_smallest(codes, old, shift))
    return round(raw / size, 1) if size else None


def _mxfp8(bits: U16) -> tuple[U16, U16]:
    """Codes and scales of the bf16 matrices as 16-bit patterns: a code's sign is bit 15, as the codecs want it."""
    values = torch.from_numpy(bits.copy()).view(torch.bfloat16)
    codes, scales = (part.numpy().astype(np.uint16).reshape(-1) for part in mxfp8.quantise(values))
    return (codes & 0x80) << 8 | codes & 0x7F, scales


def _smallest(new: U16, parent: U16, shift: int) -> bytes:
    _, stream = range_coder.encode(new, parent, range_coder.most_bytes(new.size), shift)
    assert stream is not None
    return min(bytes([codecs.Codec.RANGE]) + stream, codecs.encode(new, parent).payload, key=len)


def throughput(pair: Update, repeats: int) -> dict[str, int]:
    """MB/s of both codecs on the largest tensor, repeated to a whole chunk."""
    new, parent = pair
    name = max(new, key=lambda key: new[key].size)
    after, before = (np.resize(bits[name].reshape(-1), 1 << 20) for bits in (new, parent))
    report = {}
    for letter, coder in (("R", rice), ("A", range_coder)):
        _, stream = coder.encode(after, before, 1 << 24)
        assert stream is not None
        shadows = [before.copy() for _ in range(repeats)]
        encode_s = best_of(repeats, lambda coder=coder: coder.encode(after, before, 1 << 24))
        decode_s = best_of(
            repeats, lambda coder=coder, stream=stream, shadows=shadows: coder.apply(memoryview(stream), shadows.pop())
        )
        report |= {f"enc_MBps_{letter}": round(2e-6 * after.size / encode_s)}
        report |= {f"dec_MBps_{letter}": round(2e-6 * after.size / decode_s)}
    return report


def best_of(repeats: int, call: Callable[[], Any]) -> float:
    """The least CPU seconds of a call."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        call()
        best = min(best, time.process_time() - started)
    return best


def amortised_ratio(store: Path) -> float:
    lines = log(open_store(store))
    return round(sum(line.raw_bytes for line in lines) / sum(line.stored_bytes + line.extra_bytes for line in lines), 1)


# --- the whole ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 3e-6, 1e-5])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--amortised-steps", type=int, default=200)
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    middle = sorted(options.rates)[len(options.rates) // 2]
    report: dict[str, Any] = {"synthetic": options.synthetic}
    with tempfile.TemporaryDirectory() as scratch:
        for lr in options.rates:
            if options.synthetic:
                pairs = synthetic(lr, options.elements)
            else:
                steps = options.amortised_steps if lr == middle else options.steps
                store = train(lr, steps, Path(scratch) / f"{lr}")
                pairs = updates(store)[: options.steps]
            row = report[f"{lr:g}"] = compare(pairs)
            print(f"lr {lr:g}: {100 * row['changed']:.2f}% of the weights change; bound {row['bound_A']:.2f} bits each")
            for name in FORMATS:
                print(f"  {name:12} {row[f'ratio_{name}']:8.1f}x  {row[f'bits_{name}']:7.2f} bits a change")
            if lr == middle:
                report |= throughput(pairs[-1], options.repeats)
                if not options.synthetic:
                    report |= {"mxfp8_ratio": mxfp8_ratio(pairs), "amortised_ratio": amortised_ratio(store)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

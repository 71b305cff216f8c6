"""What a version costs to ship: Etude's codecs and its peers' formats, on the same updates.

    python benchmarks/weights.py [--steps 24] [--amortised-steps 200] [--rates 1e-6 3e-6 1e-5] [--measured 16]
    python benchmarks/weights.py --runs DIRECTORY ...      keeps the runs, and does none again that is there
    python benchmarks/weights.py --synthetic [--elements 4194304]

The updates are those of real runs: the quickstart's model and loop with AdamW at each learning rate and one group of
eight rollouts a step, whose versions are read back from the run's own weight store. Two things are made like a large
model's in the middle of its training (`start`): the matrices' deviation is 0.02 and not 0.6, for what share of the
weights a step changes is decided by the learning rate over their size; and the fp32 masters lie between bf16 values.
Neither changes what the model computes. Embeddings are left out of the figures by rate, for most of their rows see no
gradient; `--measured` updates of the last two thirds of the steps are compared. With `--synthetic`, normal weights of
deviation 0.02 move by lr * u, u normal, instead: fast, and nobody's training.

`changed` is the share of weights that change, `bits_X` are bits a changed weight, `ratio_X` raw bytes over payload
bytes; `bound_A` are the bits no coder goes below that knows each weight's old exponent and its tensor. `mxfp8_ratio` is
the same for the experts' matrices as MXFP8 codes and scales, against their own size, at the middle rate. Up to that one
runs have `--amortised-steps`, and `amortised_ratio` is raw bytes over everything in such a run's store: payloads,
manifests, merged deltas and anchors, the first version's full copy among them; `followed_ratio` is over what an engine
fetches that has followed from the start: no merged deltas, and no full copy but the first. The shipped model's tensors
are small, 8,192 to 196,608 weights, and each is coded apart: what a code says of itself at its start, and learns before
it is good, is then a part of its bits. `joined` has the same updates with all tensors end to end, in chunks of a
million weights as a large model's tensors fill them. Throughput is raw bf16 bytes a CPU second of one thread, best of
the repeats. Every payload is decoded and compared.

`publish_stall_ms` is for how long steps stood still because of publishing, in all runs together; `snapshot_ms` the copy
that a step makes, `swap_pause_ms` the pause between two of the engine's steps in which a version is put in, with
`applied_GBps` of bf16 weights, and `lag_ms` what lies between a step's end and the engine's holding its version: mean,
and medians, of the middle rate's run. The last line is one JSON object.
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
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.weights import codecs, range_coder, rice
from etude.weights.forms import U16, Array, tagged
from etude.weights.inspect import log
from etude.weights.manifest import Bits
from etude.weights.opening import open_store
from etude.weights.subscriber import Subscriber

ROOT = Path(__file__).resolve().parent.parent
SHRINK = 32.0
"""The shipped model's matrices have a deviation of 0.6; a large model's have 0.02."""
TOLD = ("snapshot_ms", "swap_pause_ms", "applied_GBps", "lag_ms")
"""Of a run's summary, besides the stall."""
JOINED = ("bits_R", "bits_A", "bound_A")
Update = tuple[Bits, Bits]
"""The weights of a version and of the one before."""


# --- updates ------------------------------------------------------------------------------------------------------


def start(directory: Path) -> Path:
    """The shipped model as `train` begins with it, in fp32.

    All matrices shrink by a power of two; the norms before them, and the norms' epsilon, make up for it bit for bit but
    for the epsilon of the heads' own norms. Then every weight moves within its bf16 value's rounding interval, as fp32
    masters do that have been trained for long: version 0, rounded from them, is the shrunk model again.
    """
    decoder, tokenizer = load_checkpoint(ROOT / "models" / "etude-tiny")
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if not name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter *= SHRINK if "norm" in name else 1 / SHRINK
            step = torch.exp2(torch.frexp(parameter).exponent - 8.0) * parameter.sign().abs()  # to the next bf16 value
            parameter += 0.98 * step * (torch.rand(parameter.shape, generator=random) - 0.5)
    save_checkpoint(decoder, directory, tokenizer, torch.float32)
    config = json.loads((directory / "config.json").read_text())
    config["rms_norm_eps"] /= SHRINK**2
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def train(model: Path, lr: float, steps: int, directory: Path) -> dict[str, Any]:
    """A run of so many steps with AdamW at that rate; returns what its summary says of delivering the versions."""
    summary = directory / "summary.json"
    if summary.exists():
        return json.loads(summary.read_text())["delivery"]
    settings = {
        "model.path": model,
        "trainer.optimizer.name": "adamw",
        "trainer.optimizer.lr": lr,
        "trainer.optimizer.momentum": "",
        "trainer.optimizer.scalar_lr": "",
        "trainer.final_lr_share": 1.0,
        "rollouts.groups_per_step": 1,
        "rollouts.rungs": [1, 2],
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
    return json.loads(summary.read_text())["delivery"]


def versions(store: Path) -> Iterator[Bits]:
    """The weights of every version, from the first on."""
    subscriber = Subscriber(open_store(store))
    bits, held = None, None
    for version in subscriber.chain.versions():
        bits, _ = subscriber.fetch(bits, held, version)
        held = version
        yield bits


def updates(store: Path, steps: int, count: int) -> list[Update]:
    """`count` of the last two thirds of the steps' updates, evenly spread, without embeddings."""
    chosen = {round(at) for at in np.linspace(steps // 3 + 1, steps, count)}
    pairs: list[Update] = []
    before: Bits = {}
    for version, bits in enumerate(versions(store)):
        if version in chosen:
            new, parent = ({name: held[name] for name in held if "embed" not in name} for held in (bits, before))
            pairs.append((new, parent))
        before = bits
    return pairs


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


def joined(pairs: list[Update]) -> list[Update]:
    """The same updates with all tensors end to end."""
    return [
        tuple({"all": np.concatenate([held[name].reshape(-1) for name in sorted(held)])} for held in pair)
        for pair in pairs
    ]


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
            for after, before in zip(_mxfp8(new[name]), _mxfp8(parent[name]), strict=True):
                raw += after.nbytes
                size += len(codecs.encode(after, before).payload)
    return round(raw / size, 1) if size else None


def _mxfp8(bits: U16) -> tuple[Array, Array]:
    """Codes and scales of the bf16 matrices, as they travel."""
    codes, scales = mxfp8.quantise(torch.from_numpy(bits.copy()).view(torch.bfloat16))
    return tagged("e4m3", codes.numpy().reshape(-1)), tagged("e8m0", scales.numpy().reshape(-1))


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


def amortised(store: Path) -> dict[str, Any]:
    """Raw bytes over all that was uploaded, and over what an engine fetches that follows from the first version on."""
    lines = log(open_store(store))
    raw, followed = sum(line.raw_bytes for line in lines), sum(line.stored_bytes for line in lines)
    uploaded = followed + sum(line.extra_bytes for line in lines)
    return {
        "amortised_ratio": round(raw / uploaded, 1),
        "followed_ratio": round(raw / followed, 1),
        "uploaded_bytes": uploaded,
        "followed_bytes": followed,
        "first_copy_bytes": lines[0].payload_bytes,
        "manifest_bytes": followed - sum(line.payload_bytes for line in lines),
    }


# --- the whole ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 3e-6, 1e-5])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--amortised-steps", type=int, default=200)
    parser.add_argument("--measured", type=int, default=16)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    middle = sorted(options.rates)[len(options.rates) // 2]
    report: dict[str, Any] = {"synthetic": options.synthetic}
    stall_ms = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        runs = options.runs or Path(scratch)
        model = None if options.synthetic else start(Path(scratch) / "model")
        for lr in options.rates:
            if model is None:
                pairs = synthetic(lr, options.elements)
            else:
                steps = options.amortised_steps if lr <= middle else options.steps
                delivery = train(model, lr, steps, runs / f"{lr}")
                stall_ms += delivery["publish_stall_ms"]
                store = runs / f"{lr}" / "weights"
                pairs = updates(store, steps, options.measured)
                if lr == middle:
                    report |= {"mxfp8_ratio": mxfp8_ratio(pairs)} | amortised(store)
                    report |= {name: rounded(delivery[name]) for name in TOLD}
            row = report[f"{lr:g}"] = compare(pairs)
            if model is not None and lr < middle:
                row |= amortised(store)
            whole = compare(joined(pairs))
            row["joined"] = {name: whole[name] for name in JOINED}
            print(f"lr {lr:g}: {100 * row['changed']:.2f}% of the weights change; bound {row['bound_A']:.2f} bits each")
            for name in FORMATS:
                print(f"  {name:12} {row[f'ratio_{name}']:8.1f}x  {row[f'bits_{name}']:7.2f} bits a change", flush=True)
            told = ", ".join(f"{name} {value:.2f}" for name, value in row["joined"].items())
            print(f"  all tensors end to end: {told}", flush=True)
            if lr == middle:
                report |= throughput(pairs[-1], options.repeats)
    if not options.synthetic:
        report["publish_stall_ms"] = rounded(stall_ms)
    print(json.dumps(report))


def rounded(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")


if __name__ == "__main__":
    main()

"""What the trainer's kernels and meshes agree on, wait for and cost: steps on a CPU, as devices would take them.

    python benchmarks/scale.py [--tokens 4096] [--steps 3] [--ranks 4] [--layers 12] [--parts kernels meshes ...]

Models of three shapes (grouped attention with experts, latent attention with experts, dense) are trained on the same
batch with `exact` and with `torch` kernels, and by meshes of gloo ranks. The last line is one JSON object, of the parts
that were asked for:

    dispatch_syncs    how often a step looked at a value before it had asked for all, by kernels and meshes: 0 is the
                      aim, and of expert parallelism one a layer and piece (two where blocks are computed once more in
                      the backward), as an exchange must know its sizes
    max_rel_error     the largest relative error of a parameter's gradient, of meshes against one process with the same
                      (`torch`) kernels, and of `torch` kernels against `exact` ones
    rss_share_4       what a rank of four (fsdp 2, ep 2) holds of a model of 200 million parameters, with masters,
                      gradients and AdamW's moments, as a share of what one process holds (rss_peak_share_4: at the
                      most, on the way)
    publish_arrays_mb the arrays that such a rank's publisher holds once it has published three versions
    publish_extra_mb  what a rank's RSS grows by to publish one more, beside the arrays that it keeps
                      (publish_first_extra_mb: its first delta, with which the compiled coders are read); all in
                      processes that have done nothing else, and none holds less than arithmetic says
    resume_equal      whether a mesh that goes on from each checkpoint of another ends with the same bits
    planner_error     the CPU seconds of a rank's step in three meshes, as `etude train --dry-run` counts its work and a
                      machine fitted to steps of other meshes prices it, beside what it took: the largest relative
                      error; and by_tokens, that of a line in a rank's own tokens, fitted to the same steps
    tok_per_cpu_s     trained tokens a second of CPU time, for the first shape: by kernels in one process, and of two
                      ranks beside transformers' own model under plain FSDP2, and beside torchtitan's where that is
                      installed (pip install torchtitan==0.3.0)
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mesh_world import World
from reads import Reads
from torch import Tensor

from etude.kernels.choice import choose
from etude.kernels.devices import put
from etude.kernels.interface import Name
from etude.models.config import LatentConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.records import Batch, Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.rollouts.plan.machines import fitted, this_computer
from etude.rollouts.plan.rates import least_squares
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, OptimizerConfig, TrainerConfig
from etude.trainer.losses import shares_of
from etude.trainer.mesh.counting import Work, added
from etude.trainer.mesh.rehearsal import rehearse
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

ADAMW = OptimizerConfig(name="adamw", lr=1e-3)
LATENT = LatentConfig(query_rank=48, rank=32, plain_width=24, rope_width=8, value_width=24)
SHAPES = {
    "experts": ModelConfig(vocab_size=1024, layers=4),
    "latent": ModelConfig(
        vocab_size=1024, layers=3, dense_layers=(0,), dense_width=256, experts=8, expert_width=64, shared_width=64,
        router="sigmoid", expert_groups=2, groups_per_token=1, latent=LATENT,
    ),
    "dense": ModelConfig(vocab_size=1024, layers=3, experts=0, dense_width=256),
}  # fmt: skip


def batch_for(config: ModelConfig, tokens: int, seed: int = 0, version: int = 0, age: int = 0) -> Batch:
    """Two groups of rollouts of mixed lengths with routes, half of their tokens sampled, for the trainer's `version`;
    every other rollout is so many versions old."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(rng.integers(2, min(512, config.max_context))))
    of = [version - age * (number % 2) for number in range(len(lengths))]
    members = [_rollout(config, number, length, of[number], rng) for number, length in enumerate(lengths)]
    task, half = Task("t", "do", {}, Verifier({})), len(members) // 2
    groups = [Group(str(at), task, tuple(each)) for at, each in enumerate((members[:half], members[half:])) if each]
    return build_batch(groups, [group_advantages(group, AdvantageConfig()) for group in groups], Version(version))


def _rollout(config: ModelConfig, number: int, length: int, version: int, rng: np.random.Generator) -> Trajectory:
    odds = rng.random((length - 1, len(config.moe_layers), config.experts))
    sampled = np.arange(length) >= length // 2
    segment = Segment(
        rng.integers(0, config.vocab_size, length).astype(np.int32), sampled,
        np.where(sampled, -np.log(config.vocab_size), 0).astype(np.float32), np.full(length, version, np.int32),
        odds.argsort(-1)[..., : config.experts_per_token].astype(np.uint8),
    )  # fmt: skip
    return Trajectory(str(number), "t", "g", (segment,), (), Scored(float(rng.random()), {}))


def batch_of_rows(config: ModelConfig, rows: int, length: int) -> Batch:
    """Rollouts of one length, half of their tokens sampled."""
    rng = np.random.default_rng(0)
    members = tuple(_rollout(config, number, length, 0, rng) for number in range(rows))
    group = Group("0", Task("t", "do", {}, Verifier({})), members)
    return build_batch([group], [group_advantages(group, AdvantageConfig())], Version(0))


def trainer_for(base: Decoder, kernels: Name, copied: bool = True, **changes: Any) -> Trainer:
    """A trainer of a decoder, or of a copy, on the CPU."""
    settings = {"optimizer": OptimizerConfig(lr=0.01), "parity_tokens": 0, "piece_tokens": 2048} | changes
    decoder = copy.deepcopy(base) if copied else base
    return Trainer(decoder.place(choose(kernels, "cpu")), TrainerConfig(**settings))


def gradients(trainer: Trainer, batch: Batch, pieces: Sequence[Batch] = ()) -> dict[str, Tensor]:
    """Of a whole batch, by name; and the loss."""
    shares = put(shares_of(batch, trainer.config.loss), trainer.placement.device)
    loss = sum(result.sums["loss"] for result in trainer.forward_backward(list(pieces) or [batch], shares))
    leaves = trainer.trained.leaves.items()
    found = {name: leaf.grad.clone() for name, leaf in leaves if leaf.grad is not None}
    for _, leaf in leaves:
        leaf.grad = None
    return found | {"loss": torch.as_tensor(loss)}


def largest_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Of any tensor, relative to its length."""
    assert found.keys() == wanted.keys()
    errors = [float((found[name] - exact).norm() / exact.norm().clamp(min=1e-12)) for name, exact in wanted.items()]
    return max(errors)


def base_for(config: ModelConfig) -> Decoder:
    """Random, and scaled so that its choices are clear-cut as a trained model's are."""
    decoder = Decoder(config)
    decoder.initialise(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return decoder


def syncs(trainer: Trainer, batch: Batch) -> Reads:
    """Looks at values of one step, before it reads what it has found."""
    shares_M = shares_of(batch, trainer.config.loss)
    with Reads() as seen:
        trainer.ask(batch, shares_M)
    return +seen


def speed(trainer: Trainer, batch: Batch, steps: int) -> float:
    trainer.step(batch)  # compiles, and packs weights
    started = time.process_time()
    for _ in range(steps):
        trainer.step(batch)
    return steps * len(batch.token_ids) / (time.process_time() - started)


ROW, ROWS = 256, 8
"""Tokens of a row, and rows, of the race with plain torch."""
MESHES: tuple[dict[str, int], ...] = (
    {"fsdp": 2}, {"ep": 2}, {"cp": 2}, {"fsdp": 2, "ep": 2}, {"cp": 2, "ep": 2}, {"replicate": 2, "fsdp": 2}
)  # fmt: skip


def by_kernels(tokens: int, steps: int) -> tuple[float, int, dict[str, float]]:
    """The largest error, looks at values, and tokens a CPU second of the first shape."""
    waited, errors, rates = 0, [], {}
    for name, config in SHAPES.items():
        base, batch = base_for(config), batch_for(config, tokens)
        exact, plain = trainer_for(base, "exact"), trainer_for(base, "torch")
        errors.append(largest_error(gradients(plain, batch), gradients(exact, batch)))
        seen = syncs(plain, batch)
        waited += seen.total()
        print(f"{name}: largest relative error of a gradient {errors[-1]:.1e}; looks at values: {dict(seen) or 'none'}")
        if name == "experts":
            for kernels in ("exact", "torch"):
                rates[kernels] = round(speed(trainer_for(base, kernels), batch, steps), 1)
            print(f"{name}: tokens a CPU second {rates}")
    return max(errors), waited, rates


def by_meshes(ranks: World, size: int, tokens: int) -> tuple[float, dict[str, int]]:
    """The largest error, and a step's looks at values of one rank by mesh, of the shape that has most."""
    errors, looks = [], {}
    for axes in MESHES:
        world = math.prod(axes.values())
        for name, config in SHAPES.items():
            if world > size or ("ep" in axes and not config.moe_layers):
                continue
            told = ranks.run(world, "errors_and_syncs", name, axes, tokens)
            errors.append(told[0][0])
            called = " ".join(f"{axis} {count}" for axis, count in axes.items())
            looks[called] = max(looks.get(called, 0), *(each for _, each in told))
            print(f"{called}, {name}: largest relative error {errors[-1]:.1e}; looks at values: {told[0][1]}")
    return max(errors), looks


def race(ranks: World, steps: int) -> dict[str, float]:
    """Tokens a CPU second of two ranks, ours, plain torch's and torchtitan's, each twice and by turns."""
    spent = {"cpu_of_mesh": 0.0, "cpu_of_plain": 0.0, "cpu_of_titan": 0.0}
    if importlib.util.find_spec("torchtitan") is None:
        del spent["cpu_of_titan"]
        print("torchtitan is not installed, and left out of the race: pip install torchtitan==0.3.0 adds it")
    for _ in range(2):
        for case in spent:
            spent[case] += sum(ranks.run(2, case, steps))
    tokens = 2 * steps * ROW * ROWS
    rates = {case.removeprefix("cpu_of_"): round(tokens / seconds, 1) for case, seconds in spent.items()}
    print(f"tokens a CPU second of two ranks: {rates}")
    return rates


KNOWN = [
    (axes, tokens) for axes in ({"fsdp": 2}, {"ep": 2}, {"cp": 2}, {"replicate": 2}) for tokens in (512, 1024, 2048)
]
"""Meshes, and tokens of a piece, that the machine is fitted to."""
UNKNOWN = [({"fsdp": 4}, 1024), ({"fsdp": 2, "ep": 2}, 1024), ({"cp": 2, "ep": 2}, 2048)]
"""Those that it is asked about."""
PLANNED = ModelConfig(vocab_size=1024, width=256, layers=4, heads=8, expert_width=256, max_context=ROW)


def planned(ranks: World, steps: int) -> dict[str, float]:
    """The largest relative error of what a step was to take, by the plan and by tokens alone."""

    def measured(axes: dict[str, int], tokens: int) -> tuple[Work, float]:
        config = TrainerConfig(ranks=axes, piece_tokens=tokens, parity_tokens=0, optimizer=ADAMW)
        played = rehearse(config, PLANNED)
        told = ranks.run(math.prod(axes.values()), "cpu_of_step", PLANNED, axes, tokens, steps)
        return added(played.piece, played.optimizer), sum(told) / len(told)

    known = [measured(*case) for case in KNOWN]
    machine = fitted("these ranks", known, this_computer())
    by_tokens = line_in_tokens(KNOWN, [took for _, took in known])
    errors: dict[str, list[float]] = {"plan": [], "by_tokens": []}
    for axes, tokens in UNKNOWN:
        work, took = measured(axes, tokens)
        said = {"plan": machine.seconds(work), "by_tokens": by_tokens(axes, tokens)}
        for name, seconds in said.items():
            errors[name].append(abs(seconds / took - 1))
        called = " ".join(f"{axis} {count}" for axis, count in axes.items())
        print(f"{called}, pieces of {tokens}: CPU s a step " + ", ".join(
            f"{name} {seconds:.3f}" for name, seconds in {**said, "took": took}.items()
        ))  # fmt: skip
    return {name: round(max(each), 3) for name, each in errors.items()}


def line_in_tokens(
    cases: Sequence[tuple[Mapping[str, int], int]], took: Sequence[float]
) -> Callable[[Mapping[str, int], int], float]:
    """What a step takes by the tokens that a rank works on itself, a constant and so much a token: what a plan that
    counts operations has to beat. Fitted as that is, below relative errors.
    """

    def own(axes: Mapping[str, int], tokens: int) -> tuple[float, float]:
        return 1.0, tokens / axes.get("cp", 1) / 1024

    wanted = np.array(took)
    const, each = least_squares(np.array([own(*case) for case in cases]) / wanted[:, None], np.ones(len(wanted)))
    return lambda axes, tokens: float(np.dot((const, each), own(axes, tokens)))


def resumes(ranks: World) -> bool:
    """Whether all is equal, of two meshes."""
    found = []
    for axes in ({"fsdp": 2}, {"ep": 2}):
        with tempfile.TemporaryDirectory(prefix="etude-scale-") as directory:
            found += [same for told in ranks.run(2, "resumed", axes, Path(directory)) for same in told]
    print(f"resumed: {sum(found)} of {len(found)} tensors equal")
    return bool(found) and all(found)


RANKS_OF = {"kernels": 1, "meshes": 2, "race": 2, "held": 4, "resume": 2, "planner": 4}
"""The parts, and how many processes each takes at the least."""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--ranks", type=int, default=4, help="processes; 4 are as many as it makes use of")
    options.add_argument("--layers", type=int, default=12, help="of the model that is held; 12: 200 million parameters")
    options.add_argument(
        "--parts", nargs="+", choices=RANKS_OF, default=list(RANKS_OF), metavar="PART", help=", ".join(RANKS_OF)
    )
    given = options.parse_args()
    if given.ranks < (needed := max(RANKS_OF[part] for part in given.parts)):
        options.error(f"--ranks {given.ranks}: these parts take {needed}; leave some out, or give more ranks")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if "kernels" in given.parts:
        error, waited, rates = by_kernels(given.tokens, given.steps)
        found = {"dispatch_syncs": {"torch": waited}, "max_rel_error": {"torch": error}, "tok_per_cpu_s": rates}
    if set(given.parts) - {"kernels"}:
        ranks = World(given.ranks, "mesh_parts")
        try:
            by_ranks(ranks, given, found)
        finally:
            ranks.close()
    print(json.dumps(found))


def by_ranks(ranks: World, given: argparse.Namespace, found: dict[str, Any]) -> None:
    """The parts that take several processes, added to what is found."""
    if "meshes" in given.parts:
        error, looks = by_meshes(ranks, given.ranks, min(given.tokens, 1024))
        found.setdefault("max_rel_error", {})["mesh"] = error
        found.setdefault("dispatch_syncs", {}).update(looks)
    if "race" in given.parts:
        rates = {f"two ranks, {name}": rate for name, rate in race(ranks, given.steps).items()}
        found.setdefault("tok_per_cpu_s", {}).update(rates)
    if "held" in given.parts:
        from mesh_memory import held  # which imports this file

        found.update(held(given.layers))
    if "resume" in given.parts:
        found["resume_equal"] = resumes(ranks)
    if "planner" in given.parts:
        found["planner_error"] = planned(ranks, given.steps)


if __name__ == "__main__":
    main()

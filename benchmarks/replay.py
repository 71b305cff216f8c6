"""What router replay does when the sampler computes otherwise than the trainer.

    python benchmarks/replay.py [--steps 40] [--seeds 3] [--rollouts 1024] [--margin 0.25] [--plot curves.svg]

A small mixture of experts (four layers of 32 experts, 4 a token) sorts eight letters; it has learnt to from examples
until it succeeds in about one of three. The trainer computes in fp32; Etude's engine samples with the same weights, but
computes with activations rounded to bf16, or with the experts' products in NVFP4 (`etude.kernels.low_precision`).

The table: |Δ log-prob| over the tokens of the same rollouts, recomputed by the trainer without replay, with it, and
with the plausibility filter at several margins; at the version that sampled, and after four further steps of training.
`routes_differ` is the share of routes that are not the sampler's. In the row "matched" the trainer multiplies in the
sampler's format, without replay.

The curves: reinforcement learning from the NVFP4 sampler, every batch two versions old, in each of the three modes. The
seeds differ in tasks and sampling; base, tasks and seeds are the same for all modes. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import math
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import SampleRequest
from etude.kernels.low_precision import ExpertLinear
from etude.models.attention import PackedAttention
from etude.models.block import Block
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.experts import multiply_by_expert
from etude.models.layers import RMSNorm
from etude.models.state import round_to_bf16
from etude.records import Batch, Group, Scored, Segment, Task, Trajectory, Verifier, solved
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch, segment_lengths
from etude.trainer.step import Trainer
from etude.trainer.supervised import load_balance

LETTERS, COUNT = 26, 8
START, TURN, END = LETTERS, LETTERS + 1, LETTERS + 2
MODEL = ModelConfig(
    vocab_size=32, width=64, layers=4, heads=4, kv_heads=2, head_width=16, experts=32, experts_per_token=4,
    expert_width=32, max_context=32,
)  # fmt: skip
TASK = Task("sort", f"Sort {COUNT} letters.", {}, Verifier({}))
SAMPLERS = ("fp32", "bf16", "nvfp4")
MARGINS = (1.0, 0.5, 0.25, 0.1)
MEMBERS, QUESTIONS, LAG = 8, 16, 2


# --- the policy, and engines that sample from it ----------------------------------------------------------------------


def base_model(wanted: float) -> Decoder:
    """Taught by examples until its probability of a whole right answer is `wanted`."""
    decoder, rng = Decoder(MODEL), random.Random("base")
    decoder.initialise(0)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3, weight_decay=0.0)
    average = 0.0
    for _ in range(3000):
        rows_BT = torch.tensor([[*letters, *answer(letters)] for letters in (question(rng) for _ in range(48))])
        length = rows_BT.shape[1] - 1
        positions = torch.arange(length).repeat(len(rows_BT))
        output = decoder(rows_BT[:, :-1].flatten(), positions, PackedAttention([length] * len(rows_BT)))
        nll_BT = F.cross_entropy(decoder.logits(output.hidden_ND), rows_BT[:, 1:].flatten(), reduction="none")
        nll_BA = nll_BT.view(len(rows_BT), length)[:, COUNT + 1 :]
        optimizer.zero_grad()
        (nll_BA.mean() + 0.01 * load_balance(output.routing)).backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        average = 0.9 * average + 0.1 * float((-nll_BA.detach().sum(1)).exp().mean())
        if average >= wanted:
            round_to_bf16(decoder)
            return decoder
    raise SystemExit(f"the base model solves {average:.0%} after 3,000 steps; {wanted:.0%} were wanted")


def question(rng: random.Random) -> list[int]:
    return [START, *(rng.randrange(LETTERS) for _ in range(COUNT)), TURN]


def answer(asked: list[int]) -> list[int]:
    return [*sorted(asked[1:-1]), END]


def engine_of(policy: Decoder, sampler: str) -> TorchEngine:
    """An engine of its own copy of the weights that computes as the sampler's name says."""
    decoder = copy.deepcopy(policy)
    if sampler == "bf16":
        round_activations(decoder)
    if sampler == "nvfp4":
        decoder.set_expert_product(ExpertLinear("nvfp4"))
    return TorchEngine(decoder, EngineConfig(cache_tokens=16_384, step_tokens=1024, max_running=256))


def round_activations(decoder: Decoder) -> None:
    """Round to bf16 what embeddings, norms, linears, experts' products and blocks put out, as a bf16 engine does."""

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().float()

    def product(rows_MK: Tensor, weight_EKN: Tensor, counts_E: Tensor) -> Tensor:
        return rounded(multiply_by_expert(rows_MK, weight_EKN, counts_E))

    decoder.set_expert_product(product)
    for module in decoder.modules():
        if isinstance(module, nn.Linear | nn.Embedding | RMSNorm):
            module.register_forward_hook(lambda _module, _given, out: rounded(out))
        if isinstance(module, Block):
            module.register_forward_hook(lambda _module, _given, out: (rounded(out[0]), out[1]))


async def rollout(engine: TorchEngine, group: str, member: int, asked: list[int], seed: int) -> Trajectory:
    name = f"{group}/{member}"
    request = SampleRequest(name, tuple(asked), COUNT + 1, frozenset({END}), seed=seed)
    done = await engine.sample(request)
    before = len(asked)
    said = Segment(
        token_ids=np.asarray([*asked, *done.token_ids], np.int32),
        sampled=np.arange(before + len(done.token_ids)) >= before,
        logprobs=np.asarray([0.0] * before + list(done.logprobs), np.float32),
        versions=np.asarray([0] * before + list(done.versions), np.int32),
        routed_experts=done.routed_experts,
    )
    right = float(list(done.token_ids) == answer(asked))
    return Trajectory(name, TASK.id, group, (said,), (), Scored(right, {"tests": right}))


def sample(engine: TorchEngine, groups: int, seed: str) -> list[Group]:
    rng = random.Random(seed)
    asked = [question(rng) for _ in range(groups)]
    seeds = [[rng.getrandbits(40) for _ in range(MEMBERS)] for _ in range(groups)]

    async def all_groups() -> list[list[Trajectory]]:
        waiting = [
            asyncio.gather(*(rollout(engine, f"{seed} {g}", m, asked[g], seeds[g][m]) for m in range(MEMBERS)))
            for g in range(groups)
        ]
        return list(await asyncio.gather(*waiting))

    played = asyncio.run(all_groups())
    return [Group(f"{seed} {g}", TASK, tuple(members)) for g, members in enumerate(played)]


def mean_reward(groups: list[Group]) -> float:
    return float(np.mean([solved(member.outcome) for group in groups for member in group.trajectories]))


# --- the table --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def mismatch(policy: Decoder, batch: Batch, replay: bool, margin: float) -> dict[str, float]:
    """How far the policy's own log-probabilities of the batch's tokens lie from the sampler's."""
    ids, routes_NLK = torch.from_numpy(batch.token_ids).long(), torch.from_numpy(batch.routed_experts).long()
    given_N = torch.from_numpy(batch.routed_mask)
    output = policy(
        ids,
        torch.from_numpy(batch.positions),
        PackedAttention(segment_lengths(batch)),
        torch.where(given_N[:, None, None], routes_NLK, -1) if replay else None,
        margin,
    )
    said = torch.from_numpy(np.flatnonzero(batch.loss_mask))
    logps = policy.logits(output.hidden_ND[said - 1]).log_softmax(-1).gather(1, ids[said, None]).squeeze(1)
    delta = (logps - torch.from_numpy(batch.behaviour_logprobs)[said]).double()
    sampler, own = routes_NLK[given_N].sort(-1).values, output.routing.experts_NLK[given_N].sort(-1).values
    return {
        "k3": float((delta.exp() - 1 - delta).mean()),
        "p50": float(delta.abs().quantile(0.5)),
        "p99": float(delta.abs().quantile(0.99)),
        "max": float(delta.abs().max()),
        "over_ln2": float((delta.abs() > math.log(2)).double().mean()),
        "routes_differ": float((sampler != own).any(-1).double().mean()),
    }


def rows_of(policy: Decoder, batch: Batch, margins: tuple[float, ...]) -> Iterator[tuple[str, dict[str, float]]]:
    yield "no replay", mismatch(policy, batch, replay=False, margin=math.inf)
    yield "replay", mismatch(policy, batch, replay=True, margin=math.inf)
    for margin in margins:
        yield f"filter {margin:g}", mismatch(policy, batch, replay=True, margin=margin)


def table(base: Decoder, rollouts: int, margin: float) -> dict[str, dict[str, float]]:
    """Figures by "sampler, versions since, mode"."""
    figures: dict[str, dict[str, float]] = {}
    for sampler in SAMPLERS:
        engine, trainer = engine_of(base, sampler), trainer_of(base, "filter", margin)
        batch = batch_of(sample(engine, rollouts // MEMBERS, "table"), trainer)
        for mode, row in rows_of(trainer.policy, batch, MARGINS if sampler != "fp32" else ()):
            figures[f"{sampler}, 0, {mode}"] = row
        if sampler == "nvfp4":
            matched = copy.deepcopy(trainer.policy)
            matched.set_expert_product(ExpertLinear("nvfp4"))
            figures["nvfp4, 0, matched"] = mismatch(matched, batch, replay=False, margin=math.inf)
        for number in range(4):
            trainer.step(batch_of(sample(engine, QUESTIONS, f"meanwhile {number}"), trainer))
            engine.swap(trainer.export(), trainer.version).result(60)
        for mode, row in rows_of(trainer.policy, batch, MARGINS if sampler != "fp32" else ()):
            figures[f"{sampler}, 4, {mode}"] = row
        engine.close()
    for name, row in figures.items():
        print(f"{name:24}" + "  ".join(f"{key} {value:.2e}" for key, value in row.items()), flush=True)
    return figures


# --- the curves -------------------------------------------------------------------------------------------------------


def trainer_of(base: Decoder, mode: str, margin: float) -> Trainer:
    config = TrainerConfig(
        optimizer=OptimizerConfig(name="adamw", lr=3e-4),
        router_replay=mode != "no replay",
        replay_margin=margin if mode == "filter" else math.inf,
    )
    return Trainer(copy.deepcopy(base), config)


def batch_of(groups: list[Group], trainer: Trainer) -> Batch:
    values = [group_advantages(group, AdvantageConfig()) for group in groups]
    return build_batch(groups, values, trainer.version)


def curve(base: Decoder, mode: str, margin: float, steps: int, seed: int) -> dict[str, list[float]]:
    """Reward and mismatch of each step."""
    trainer, engine = trainer_of(base, mode, margin), engine_of(base, "nvfp4")
    logged: dict[str, list[float]] = {"reward": [], "k3": [], "over_ln2": [], "grad_norm": [], "replaced": []}
    waiting: deque[list[Group]] = deque()
    try:
        for step in range(steps):
            waiting.append(sample(engine, QUESTIONS, f"{seed} {step}"))
            logged["reward"].append(mean_reward(waiting[-1]))
            if len(waiting) <= LAG:
                continue
            metrics = trainer.step(batch_of(waiting.popleft(), trainer))
            engine.swap(trainer.export(), trainer.version).result(60)
            logged["k3"].append(metrics["mismatch_k3"])
            logged["over_ln2"].append(metrics["over_ln2_share"])
            logged["grad_norm"].append(metrics["grad_norm"])
            logged["replaced"].append(metrics["experts_replaced_share"])
    finally:
        engine.close()
    return logged


def curves(base: Decoder, margin: float, steps: int, seeds: int) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    last = max(1, steps // 5)
    for mode in ("no replay", "replay", "filter"):
        runs = [curve(base, mode, margin, steps, seed) for seed in range(seeds)]
        ends = [float(np.mean(run["reward"][-last:])) for run in runs]
        means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0] if name != "reward"}
        results[mode] = {"rewards": [np.round(run["reward"], 4).tolist() for run in runs], "last": ends, **means}
        figures = "  ".join(f"{name} {value:.2e}" for name, value in means.items())
        print(f"{mode:10} reward at the end {', '.join(f'{end:.1%}' for end in ends)}  {figures}", flush=True)
    return results


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    from matplotlib import pyplot  # only to draw

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for (mode, result), colour in zip(results.items(), ("#d55e00", "#0072b2", "#009e73"), strict=True):
        rewards = np.asarray(result["rewards"]) * 100
        axes.plot(rewards.mean(0), color=colour, label=mode, linewidth=2)
        axes.fill_between(
            range(rewards.shape[1]), rewards.min(0), rewards.max(0), color=colour, alpha=0.15, linewidth=0
        )
    axes.set(xlabel="step", ylabel="solved, %", title="NVFP4 sampler, fp32 trainer: mean and range of the seeds")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=1024, help="of the table")
    parser.add_argument("--margin", type=float, default=0.25, help="of the filter, in the curves")
    parser.add_argument("--solved", type=float, default=0.33, help="what the base solves")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = base_model(options.solved)
    figures = {"table": table(base, options.rollouts, options.margin)}
    if options.steps:
        figures["curves"] = curves(base, options.margin, options.steps, options.seeds)
        if options.plot:
            draw(figures["curves"], options.plot)
    print(json.dumps({"margin": options.margin, "lag": LAG, **figures}))


if __name__ == "__main__":
    main()

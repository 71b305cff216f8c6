"""Do trainer and engine agree on a GPU, with each other and with a CPU; what exactness costs.

    python benchmarks/gpu/parity.py [--width 512] [--layers 4] [--tokens 2048] [--cost-shape recipes/shapes/Qwen3-0.6B]

A random mixture of experts is sampled from by the engine and trained on by the trainer, both on the GPU, by `torch` and
by `triton` kernels. `max_abs_dlogp` is the largest difference between the log-probability that the engine told of a
token and the trainer's: `triton` kernels promise 0, in any batch. `grad_error` is the largest relative error of a
gradient against the `exact` kernels on the CPU, in fp32.

Then steps of `--cost-shape` (of the same model without it) are timed by each of the two, as they are and under
`torch.use_deterministic_algorithms`: trained tokens a second (`tok_per_s`), and whether a gradient that is computed
twice has the same bits (`same_bits`). A way that torch has no deterministic algorithm for is told of in `refused`.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic products
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import scale
import torch
from timing import device_name, open_device

from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import Completion, SampleRequest
from etude.kernels.choice import choose
from etude.kernels.interface import Name
from etude.models.checkpoint import shape_of
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.state import round_to_bf16
from etude.records import Batch, Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

KERNELS: tuple[Name, ...] = ("torch", "triton")


def trainer_of(base: Decoder, kernels: Name, device: torch.device) -> Trainer:
    decoder = copy.deepcopy(base).place(choose(kernels, device))
    return Trainer(decoder, TrainerConfig(parity_tokens=0, optimizer=OptimizerConfig(name="adamw", lr=1e-4)))


def sampled(base: Decoder, kernels: Name, device: torch.device, sessions: int, longest: int) -> Batch:
    """What the engine samples, sessions of many lengths at once, as a batch for the trainer."""
    rng = np.random.default_rng(0)
    engine = TorchEngine(copy.deepcopy(base).place(choose(kernels, device)), EngineConfig(cache_tokens=8192))
    prompts = [
        tuple(rng.integers(3, base.config.vocab_size, int(rng.integers(2, longest))).tolist()) for _ in range(sessions)
    ]
    asked = [SampleRequest(f"s{at}", ids, longest // 2, frozenset(), seed=at) for at, ids in enumerate(prompts)]

    async def play() -> list[Completion]:
        return await asyncio.gather(*map(engine.sample, asked))

    try:
        told = asyncio.run(play())
    finally:
        engine.close()
    members = tuple(map(_rollout, range(sessions), prompts, told))
    group = Group("g", Task("t", "do", {}, Verifier({})), members)
    return build_batch([group], [group_advantages(group, AdvantageConfig())], Version(0))


def _rollout(number: int, prompt: tuple[int, ...], told: Completion) -> Trajectory:
    ids = np.array((*prompt, *told.token_ids), np.int32)
    own = np.arange(len(ids)) >= len(prompt)
    logprobs = np.concatenate((np.zeros(len(prompt)), told.logprobs)).astype(np.float32)
    segment = Segment(ids, own, logprobs, np.zeros(len(ids), np.int32), told.routed_experts)
    return Trajectory(str(number), "t", "g", (segment,), (), Scored(float(number % 2), {}))


def batch_of(config: ModelConfig, tokens: int) -> Batch:
    """Sixteen rollouts or so, so that groups have something to compare."""
    return scale.batch_for(config.model_copy(update={"max_context": tokens // 8}), tokens)


def agreement(base: Decoder, device: torch.device, options: argparse.Namespace) -> dict[str, float]:
    figures: dict[str, float] = {}
    batch = batch_of(base.config, options.tokens)
    wanted = scale.gradients(scale.trainer_for(base, "exact"), batch)
    assert all(each.any() for name, each in wanted.items() if "expert" not in name), "a gradient that is nothing"
    for kernels in KERNELS:
        found = scale.gradients(trainer_of(base, kernels, device), batch)
        on_host = {name: each.cpu() for name, each in found.items()}
        figures[f"grad_error_{kernels}"] = scale.largest_error(on_host, wanted)
        told = sampled(base, kernels, device, options.sessions, options.longest)
        line = trainer_of(base, kernels, device).step(told)
        figures[f"max_abs_dlogp_{kernels}"] = line["max_abs_dlogp"]
    return figures


def cost(config: ModelConfig, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Each way to compute, one after the other, from the same weights and on the same batch."""
    figures: dict[str, Any] = {"refused": {}}
    base, batch = Decoder(config), batch_of(config, options.cost_tokens)
    base.initialise(0)
    for kernels in KERNELS:
        for deterministic in (False, True):
            way = f"{kernels}_deterministic" if deterministic else kernels
            torch.use_deterministic_algorithms(deterministic)
            try:
                figures |= one_way(way, trainer_of(base, kernels, device), batch, options.steps)
            except RuntimeError as error:
                if "deterministic" not in str(error):
                    raise
                figures["refused"][way] = str(error).partition("\n")[0]
            finally:
                torch.use_deterministic_algorithms(False)
    return figures


def one_way(way: str, trainer: Trainer, batch: Batch, steps: int) -> dict[str, Any]:
    """Trained tokens a second: a step ends by reading what it has found."""
    one, other = scale.gradients(trainer, batch), scale.gradients(trainer, batch)
    same = all(torch.equal(each, other[name]) for name, each in one.items())
    del one, other
    trainer.step(batch)
    started = time.perf_counter()
    for _ in range(steps):
        trainer.step(batch)
    rate = steps * len(batch.token_ids) / (time.perf_counter() - started)
    return {f"same_bits_{way}": same, f"tok_per_s_{way}": round(rate, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=2048, help="of the batch whose gradients are compared")
    parser.add_argument("--sessions", type=int, default=32, help="that the engine samples at once")
    parser.add_argument("--longest", type=int, default=200, help="tokens of a prompt; half as many are sampled")
    parser.add_argument("--cost-shape", type=Path, help="a directory with the config.json of what is timed")
    parser.add_argument("--cost-tokens", type=int, default=8192, help="of a step that is timed")
    parser.add_argument("--steps", type=int, default=5, help="that are timed")
    options = parser.parse_args()
    device = open_device()
    config = ModelConfig(
        vocab_size=options.vocabulary, width=options.width, layers=options.layers, heads=options.width // 32,
        kv_heads=options.width // 64, expert_width=options.width // 2, max_context=512,
    )  # fmt: skip
    base = scale.base_for(config)
    round_to_bf16(base)  # what a trainer's policy is, and an engine's weights
    shape = config if options.cost_shape is None else shape_of(options.cost_shape)
    figures = agreement(base, device, options) | cost(shape, device, options)
    for name, figure in figures.items():
        print(f"{name:32} {figure}")
    print(json.dumps({"device": device_name(), "cost_shape": str(options.cost_shape), **figures}))


if __name__ == "__main__":
    main()

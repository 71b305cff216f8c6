"""What the trainer's kernels agree on, wait for and cost: a step with each on a CPU, as a device would take it.

    python benchmarks/scale.py [--tokens 4096] [--steps 3]

Models of three shapes (grouped attention with experts, latent attention with experts, dense) are trained on the same
batch with `exact` and with `torch` kernels. The last line is one JSON object:

    dispatch_syncs   how often a step with `torch` kernels looked at a value before it had asked for all: 0 is the aim
    max_rel_error    the largest relative error of a parameter's gradient with `torch` kernels, against `exact` ones
    tok_per_cpu_s    trained tokens a second of this process's CPU time, by kernels, for the first shape
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from etude.kernels.choice import choose
from etude.kernels.interface import Name
from etude.models.config import LatentConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.records import Batch, Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, OptimizerConfig, TrainerConfig
from etude.trainer.losses import shares_of
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer

LATENT = LatentConfig(query_rank=48, rank=32, plain_width=24, rope_width=8, value_width=24)
SHAPES = {
    "experts": ModelConfig(vocab_size=1024, layers=4),
    "latent": ModelConfig(
        vocab_size=1024, layers=3, dense_layers=(0,), dense_width=256, experts=8, expert_width=64, shared_width=64,
        router="sigmoid", expert_groups=2, groups_per_token=1, latent=LATENT,
    ),
    "dense": ModelConfig(vocab_size=1024, layers=3, experts=0, dense_width=256),
}  # fmt: skip

READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that hand a value to the host."""
ASKING = (
    "_local_scalar_dense", "nonzero", "nonzero_static", "argwhere", "masked_select", "unique", "_unique2",
    "unique_dim", "unique_consecutive", "bincount", "equal", "is_nonzero", "repeat_interleave.Tensor",
)  # fmt: skip
"""Operations that hand one to the host, or whose result has a shape that depends on values."""


class Reads(Counter[str]):
    """Counts every look at a value while it is entered, by its name: in Python, and below, in backwards too."""

    def __enter__(self) -> Reads:
        self._modes = _Methods(self), _Operations(self)
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Methods(TorchFunctionMode):
    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        self.seen[f"Tensor.{name}"] += name in READERS
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = function.overloadpacket.__name__
        asks = packet in ASKING or f"{packet}.{function._overloadname}" in ASKING
        indices = args[1] if packet.startswith(("index", "_index")) and len(args) > 1 else ()
        masked = isinstance(indices, (list, tuple)) and any(
            isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8) for each in indices
        )
        self.seen[f"aten.{packet}"] += asks or masked
        return function(*args, **(kwargs or {}))


def batch_for(config: ModelConfig, tokens: int, seed: int = 0) -> Batch:
    """Two groups of rollouts of mixed lengths with routes, half of their tokens sampled."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(rng.integers(2, min(512, config.max_context))))
    members = [_rollout(config, number, length, rng) for number, length in enumerate(lengths)]
    task, half = Task("t", "do", {}, Verifier({})), len(members) // 2
    groups = [Group(str(at), task, tuple(each)) for at, each in enumerate((members[:half], members[half:])) if each]
    return build_batch(groups, [group_advantages(group, AdvantageConfig()) for group in groups], Version(0))


def _rollout(config: ModelConfig, number: int, length: int, rng: np.random.Generator) -> Trajectory:
    odds = rng.random((length - 1, len(config.moe_layers), config.experts))
    sampled = np.arange(length) >= length // 2
    segment = Segment(
        rng.integers(0, config.vocab_size, length).astype(np.int32), sampled,
        np.where(sampled, -np.log(config.vocab_size), 0).astype(np.float32), np.zeros(length, np.int32),
        odds.argsort(-1)[..., : config.experts_per_token].astype(np.uint8),
    )  # fmt: skip
    return Trajectory(str(number), "t", "g", (segment,), (), Scored(float(rng.random()), {}))


def trainer_for(base: Decoder, kernels: Name, **changes: Any) -> Trainer:
    """A trainer of a copy of a decoder, on the CPU."""
    settings = {"optimizer": OptimizerConfig(lr=0.01), "parity_tokens": 0, "piece_tokens": 2048} | changes
    return Trainer(copy.deepcopy(base).place(choose(kernels, "cpu")), TrainerConfig(**settings))


def gradients(trainer: Trainer, batch: Batch) -> dict[str, Tensor]:
    """Of a whole batch, by name; and the loss."""
    shares = torch.from_numpy(shares_of(batch, trainer.config.loss))
    loss = sum(result.sums["loss"] for result in trainer.forward_backward([batch], shares))
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


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--tokens", type=int, default=4096)
    options.add_argument("--steps", type=int, default=3)
    given = options.parse_args()
    torch.set_num_threads(1)
    waited, errors, rates = 0, [], {}
    for name, config in SHAPES.items():
        base, batch = base_for(config), batch_for(config, given.tokens)
        exact, plain = trainer_for(base, "exact"), trainer_for(base, "torch")
        errors.append(largest_error(gradients(plain, batch), gradients(exact, batch)))
        seen = syncs(plain, batch)
        waited += seen.total()
        print(f"{name}: largest relative error of a gradient {errors[-1]:.1e}; looks at values: {dict(seen) or 'none'}")
        if name == "experts":
            rates = {
                kernels: round(speed(trainer_for(base, kernels), batch, given.steps), 1)
                for kernels in ("exact", "torch")
            }
            print(f"{name}: tokens a CPU second {rates}")
    print(json.dumps({"dispatch_syncs": waited, "max_rel_error": max(errors), "tok_per_cpu_s": rates}))


if __name__ == "__main__":
    main()

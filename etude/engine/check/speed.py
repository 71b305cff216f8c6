"""How many tokens a CPU-second a model gives here, through Etude's engine and through `transformers`.

Owns the workload, which both get: so many sequences side by side, the same prompts, greedy, no end. CPU time is the
process's own, of all threads; torch has one, as in rollouts. What a machine does beside it costs less than it would in
seconds, and not nothing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import SampleRequest


@dataclass(frozen=True)
class Workload:
    """`vocab_size` is the model's: prompts are of random tokens, which nothing could have cached."""

    vocab_size: int
    batch: int = 16
    prompt_tokens: int = 64
    new_tokens: int = 33
    seed: int = 0

    def prompts(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, self.vocab_size, (self.batch, self.prompt_tokens), generator=generator)


@dataclass(frozen=True)
class Speed:
    """Tokens a CPU-second: of prompts, and of answers once all sequences have begun theirs."""

    prefill: float
    decode: float


def of_engine(engine: TorchEngine, load: Workload) -> Speed:
    """Etude's own. The first sequences of all compile what nobody has run yet: two go ahead that are not counted."""
    _measured(engine, replace(load, batch=2, new_tokens=3, seed=1))
    return _measured(engine, load)


def _measured(engine: TorchEngine, load: Workload) -> Speed:
    begun: dict[str, float] = {}
    done = dict.fromkeys(map(str, range(load.batch)), 0)
    late: list[int] = [0]

    async def ask(name: str, ids: list[int]) -> None:
        def heard(token: object) -> bool:
            begun.setdefault(name, time.process_time())
            done[name] += 1
            late[0] += len(begun) == load.batch and done[name] > 1
            return False

        request = SampleRequest(f"speed-{load.seed}-{name}", tuple(ids), load.new_tokens, frozenset(), 0.0, 1)
        await engine.sample(request, heard)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(str(at), ids) for at, ids in enumerate(load.prompts().tolist())))

    started = time.process_time()
    asyncio.run(ask_all())
    ended = time.process_time()
    last = max(begun.values())
    before = sum(done.values()) - late[0] - load.batch
    prompts = load.batch * load.prompt_tokens + before
    return Speed(prompts / (last - started), late[0] / (ended - last))


@torch.no_grad()
def of_peer(model: Any, load: Workload) -> Speed:
    """The same through transformers: one forward over all prompts, then one a token, with its cache."""
    ids = load.prompts()
    started = time.process_time()
    output = model(ids, use_cache=True, logits_to_keep=1)
    last = time.process_time()
    for _ in range(load.new_tokens - 1):
        token = output.logits[:, -1:].argmax(-1)
        output = model(token, past_key_values=output.past_key_values, use_cache=True)
    ended = time.process_time()
    return Speed(ids.numel() / (last - started), load.batch * (load.new_tokens - 1) / (ended - last))

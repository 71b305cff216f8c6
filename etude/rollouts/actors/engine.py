"""The engine's process: samples, and follows the weight store.

Holds one engine and passes calls on; knows nothing of rollouts. Torch is imported inside the actor, so that the
controller's process never loads it. Talks to: engine, weights.
"""

from __future__ import annotations

import asyncio
from typing import Any

from etude.environments.cluster.calls import actor
from etude.harness.sampler import Completion, SampleRequest
from etude.records import Version
from etude.rollouts.config import RunConfig
from etude.rollouts.ray_process import ActorBase


@actor(num_cpus=0, max_concurrency=1000)
class EngineActor(ActorBase):
    """One engine process: samples, and follows the weight store. If it dies, the fleet starts another."""

    def __init__(self, config: RunConfig, store: str, replica: int) -> None:
        import torch

        from etude.engine.opening import open_engine
        from etude.engine.updates import WeightUpdates
        from etude.models.checkpoint import load_checkpoint
        from etude.models.expert_format import set_expert_format
        from etude.models.state import hold_in_bf16
        from etude.weights.opening import open_store
        from etude.weights.subscriber import Subscriber

        torch.set_num_threads(1)
        decoder, _ = load_checkpoint(config.model.path)
        self.product = set_expert_format(decoder, config.model.expert_format)
        if self.product is None:  # what codes stand for is not always a bf16 value
            hold_in_bf16(decoder)
        self.engine = open_engine(config.engine, decoder, replica)
        self.updates = WeightUpdates(self.engine, Subscriber(open_store(store, config.weight_store), config.subscriber))

    async def sample(self, request: SampleRequest) -> Completion:
        return await self.engine.sample(request)

    async def load(self, target: Version) -> dict[str, Any] | None:
        """Fetch and verify a version in the background, then swap it in between two decode steps.

        None if a later version has come in meanwhile.
        """
        served = await self.updates.load(target)
        return None if served is None else served.as_json()

    async def put(self, bits: Any, version: Version) -> None:
        """Swap in weights that are on no chain: the control's."""
        await asyncio.wrap_future(self.engine.swap(bits, version))

    async def cancel(self, sessions: list[str]) -> None:
        for session in sessions:
            self.engine.cancel(session)

    async def stats(self) -> dict[str, float]:
        """Counters and gauges. Raises what has stopped the engine: the fleet then starts another."""
        self.engine.raise_if_down()
        return {**self.engine.stats(), "low_precision_rows_sampled": self.product.rows if self.product else 0}

    async def close(self) -> None:
        self.engine.close()

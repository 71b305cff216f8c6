"""What a model takes of memory when it is served or trained here, from its shape alone.

Owns the estimate and nothing else: no model is made. Bytes of weights, gradients and moments are exact; what a process
holds beside them (torch, activations, versions on their way) are the figures measured on one model of 135M parameters
(docs/results.md, "A published model": 4.6 GiB in the trainer, 2.1 in an engine, 0.9 in all else). So a small model's is
too high and a model with another shape may be off; `benchmarks/real_model.py` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.engine.cache_size import LEAST_BYTES, affordable, position_bytes
from etude.models.config import ModelConfig
from etude.models.size import parameters_of

GIB = 1 << 30
TRAINER_STATE = {"adamw": 20, "muon": 16}
"""Bytes a parameter: policy, masters and gradients in fp32, and two moments, or (of matrices) one."""
_VERSIONS = 4
"""Two versions in bf16 on their way to the store."""
_SERVED = 4 + 2 + 4
"""fp32 weights, panels in bf16, and a version that comes in beside the one it is compared with."""
_ACTIVATIONS = 1 * GIB
"""Blocks that would keep more than this are computed once more in the backward."""
_PROCESS = 0.6 * GIB
_ELSE = 0.9 * GIB
"""Controller, Ray and sandboxes."""


@dataclass(frozen=True)
class Estimate:
    """In bytes. `trains` says which optimizers a whole run has room for in `free`."""

    engine: int
    training: dict[str, int]
    free: int
    most_parameters: dict[str, int]
    """Of a dense model that fits, by the same sum."""

    @property
    def trains(self) -> dict[str, bool]:
        return {name: needed <= self.free for name, needed in self.training.items()}


def estimate(config: ModelConfig, free: int) -> Estimate:
    """Of `etude train` with one rank and one engine, all weights trained in fp32."""
    count = parameters_of(config)
    cache = affordable(config, free) * position_bytes(config)
    engine = int(_SERVED * count + cache + _PROCESS)
    beside = engine + _ACTIVATIONS + _PROCESS + _ELSE
    training = {name: int((state + _VERSIONS) * count + beside) for name, state in TRAINER_STATE.items()}
    fixed = _ACTIVATIONS + 2 * _PROCESS + _ELSE + LEAST_BYTES
    most = {
        name: max(0, int((free - fixed) / (state + _VERSIONS + _SERVED + 2))) for name, state in TRAINER_STATE.items()
    }
    return Estimate(engine, training, free, most)

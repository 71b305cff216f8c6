"""The effort penalty: what a solved rollout costs, concave in how much was done.

Owns `concave_cost` and `effort_of`. After Composer 2 (arXiv 2603.24477):

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),   and ln(1 + k x) / k at q = 1

with x a weighted sum of sampled tokens, tool calls and turns. C(x) ~ x for small x and grows ever more slowly, so that
a unit of effort weighs most on easy tasks. Knows nothing of tests; `rewards.reward` applies it to solved rollouts only.
"""

from __future__ import annotations

import math

from pydantic import Field

from etude.config import Config


class EffortConfig(Config):
    """The penalty is `min(cap, scale * C(x))`, with x = tokens / token_unit * tokens_weight + calls … + turns …"""

    enabled: bool = True
    scale: float = Field(0.02, ge=0)
    cap: float = Field(0.5, ge=0, lt=1)
    """Below 1, so that a solved rollout is worth more than an unsolved one whatever it cost."""
    k: float = Field(0.25, gt=0)
    q: float = Field(0.5, ge=0)
    token_unit: float = Field(100.0, gt=0)
    tokens_weight: float = Field(1.0, ge=0)
    calls_weight: float = Field(0.25, ge=0)
    turns_weight: float = Field(1.0, ge=0)


def concave_cost(x: float, k: float, q: float) -> float:
    """C(x) for x >= 0, k > 0, q >= 0; continuous in q at 1."""
    if abs(q - 1.0) < 1e-9:
        return math.log1p(k * x) / k
    return math.expm1((1.0 - q) * math.log1p(k * x)) / (k * (1.0 - q))


def effort_of(sampled_tokens: int, tool_calls: int, turns: int, config: EffortConfig) -> float:
    """x: the weighted effort of a rollout. Turns cost more than calls, which pays for parallel calls."""
    tokens = config.tokens_weight * sampled_tokens / config.token_unit
    return tokens + config.calls_weight * tool_calls + config.turns_weight * turns

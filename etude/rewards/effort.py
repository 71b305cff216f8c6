"""The effort penalty: what a solved rollout costs, concave in how much was done.

Owns `Effort`, `effort_in`, `effort_of` and `concave_cost`. After Composer 2 (arXiv 2603.24477):

    C(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)),   and ln(1 + k x) / k at q = 1

with x a weighted sum of six quantities: tokens of thinking, of tool calls, of tools' answers and of final messages,
tool calls, and turns. C(x) ~ x for small x and grows ever more slowly, so that a unit of effort weighs most on easy
tasks. Knows nothing of tests; `rewards.reward` applies it to solved rollouts only.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass

from pydantic import Field

from etude.config import Config
from etude.harness.protocol import Text, parse_message
from etude.harness.session import SessionResult

_THOUGHT = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)


@dataclass(frozen=True)
class Effort:
    """What a session did. The tokens of thinking, calls and final messages add up to those that were sampled."""

    thinking_tokens: int
    """Words beside calls, what stands in `<think>`, and summaries."""
    call_tokens: int
    output_tokens: int
    """What tools answered, as the model read it."""
    final_tokens: int
    """Messages without a call."""
    calls: int
    turns: int


@dataclass(frozen=True)
class Weights:
    """What x counts each kind of effort for. All that is sampled weighs the same, and turns more than calls, which pays
    for parallel calls."""

    thinking: float = 1.0
    call_tokens: float = 1.0
    output: float = 0.0
    """What a tool answers is not the model's doing, and reading before editing is to be encouraged."""
    final: float = 1.0
    calls: float = 0.25
    turns: float = 1.0
    token_unit: float = 100.0
    """So many tokens weigh as much as a turn: a short message with a call."""


WEIGHTS = Weights()


class EffortConfig(Config):
    """The penalty is `min(cap, scale * C(x))` on solved rollouts. x is the rollout's effort: each turn and each hundred
    sampled tokens count 1, each tool call 0.25."""

    enabled: bool = True
    """False: effort costs nothing."""
    scale: float = Field(0.02, ge=0)
    """What the first unit of effort costs: about a hundred tokens, or a turn."""
    cap: float = Field(0.5, gt=0, lt=1)
    """Below 1, so that a solved rollout is worth more than an unsolved one whatever it cost."""
    k: float = Field(0.25, gt=0)
    """How soon C bends: from x = 1 / k on, more effort costs noticeably less each."""
    q: float = Field(0.5, ge=0)
    """How far it bends: 0 is a straight line, 1 a logarithm, more is bounded."""

    def idle(self) -> dict[str, str]:
        if not self.enabled:
            return dict.fromkeys(("scale", "cap", "k", "q"), "with enabled = false")
        return dict.fromkeys(("cap", "k", "q") if not self.scale else (), "with scale = 0")


def concave_cost(x: float, k: float, q: float) -> float:
    """C(x) for x >= 0, k > 0, q >= 0; continuous in q at 1."""
    if abs(q - 1.0) < 1e-9:
        return math.log1p(k * x) / k
    return math.expm1((1.0 - q) * math.log1p(k * x)) / (k * (1.0 - q))


def effort_of(effort: Effort, weights: Weights = WEIGHTS) -> float:
    """x: the weighted effort of a rollout. Turns cost more than calls, which pays for parallel calls."""
    tokens = (
        weights.thinking * effort.thinking_tokens
        + weights.call_tokens * effort.call_tokens
        + weights.output * effort.output_tokens
        + weights.final * effort.final_tokens
    )
    return tokens / weights.token_unit + weights.calls * effort.calls + weights.turns * effort.turns


def effort_in(session: SessionResult) -> Effort:
    """The six quantities of a session. A message's tokens are divided by the characters of its words and its calls."""
    usage = session.usage
    native = Counter[int]()
    for event in session.events:
        if event.kind == "tool_call":
            native[event.data["turn"]] += len(json.dumps(event.data.get("arguments") or event.data.get("raw", "")))
    called = final = 0
    for event in session.events:
        if event.kind == "completion":
            spoken, in_calls, thought = _characters(str(event.data["text"]), native[event.data["turn"]])
            tokens = int(event.data["tokens"])
            if in_calls:
                called += round(tokens * in_calls / (spoken + thought + in_calls))
            else:
                final += round(tokens * spoken / max(spoken + thought, 1))
    thinking = usage["sampled_tokens"] - called - final
    return Effort(thinking, called, usage.get("observed_tokens", 0), final, usage["tool_calls"], usage["turns"])


def _characters(text: str, native: int) -> tuple[int, int, int]:
    """(words, calls, thoughts) of a message; `native` are its calls' where they are not in the text."""
    thought = sum(len(each) for each in _THOUGHT.findall(text))
    bare = _THOUGHT.sub("", text)
    spoken = sum(len(item.text) for item in parse_message(bare, {}) if isinstance(item, Text))
    return spoken, (len(bare) - spoken) or native, thought

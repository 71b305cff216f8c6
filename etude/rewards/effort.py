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


class EffortConfig(Config):
    """The penalty is `min(cap, scale * C(x))`, with x the sum of tokens, each kind by its weight, / token_unit, and of
    calls and turns by theirs."""

    enabled: bool = True
    scale: float = Field(0.02, ge=0)
    cap: float = Field(0.5, ge=0, lt=1)
    """Below 1, so that a solved rollout is worth more than an unsolved one whatever it cost."""
    k: float = Field(0.25, gt=0)
    q: float = Field(0.5, ge=0)
    token_unit: float = Field(100.0, gt=0)
    thinking_weight: float = Field(1.0, ge=0)
    call_tokens_weight: float = Field(1.0, ge=0)
    output_weight: float = Field(0.0, ge=0)
    """0: what a tool answers is not the model's doing, and reading before editing is to be encouraged."""
    final_weight: float = Field(1.0, ge=0)
    calls_weight: float = Field(0.25, ge=0)
    turns_weight: float = Field(1.0, ge=0)


def concave_cost(x: float, k: float, q: float) -> float:
    """C(x) for x >= 0, k > 0, q >= 0; continuous in q at 1."""
    if abs(q - 1.0) < 1e-9:
        return math.log1p(k * x) / k
    return math.expm1((1.0 - q) * math.log1p(k * x)) / (k * (1.0 - q))


def effort_of(effort: Effort, config: EffortConfig) -> float:
    """x: the weighted effort of a rollout. Turns cost more than calls, which pays for parallel calls."""
    tokens = (
        config.thinking_weight * effort.thinking_tokens
        + config.call_tokens_weight * effort.call_tokens
        + config.output_weight * effort.output_tokens
        + config.final_weight * effort.final_tokens
    )
    return tokens / config.token_unit + config.calls_weight * effort.calls + config.turns_weight * effort.turns


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

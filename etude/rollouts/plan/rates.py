"""What a run's processes take for what they do: written down while it goes on, and read back for a plan.

Owns two kinds of lines in metrics.jsonl, `rollout` and `engine`, and `Rates`, what is learnt from them and from the
lines of steps and deliveries. All times are of a run's own machine, with whatever its processes did to each other.
Decides nothing: `plan.simulator` says what follows.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import ConfigError
from etude.records import InfraFailed, reward_of, verdict_of
from etude.rollouts.lines import rows
from etude.rollouts.sample import Sample

LEAST_ROLLOUTS, LEAST_STEPS = 16, 2
"""What can be learnt from."""
FIRST_WORDS = 80
"""Characters: failures of one cause begin alike."""
WHOLE = 0.75
"""Groups with fewer of their members were under way when the run ended: only their quickest have come in."""


@dataclass(frozen=True)
class Turn:
    """One message and the calls in it."""

    prefill: int
    """Tokens that the engine reads before it samples: what tools answered since the last message."""
    tokens: int
    tools_s: float
    """From the message to the last of its calls' answers."""


@dataclass(frozen=True)
class Played:
    """One rollout as it went."""

    turns: tuple[Turn, ...]
    before_s: float
    """From the order to the session's first prompt: a sandbox is made."""
    after_s: float
    """From the session's end to the verdict."""
    reward: float | None
    """None where it failed for infrastructure."""
    verdict: float | None = None
    """None: the same, as in lines of older versions."""

    @property
    def context(self) -> int:
        """Tokens that a trainer computes for it."""
        return sum(turn.prefill + turn.tokens for turn in self.turns)


@dataclass(frozen=True)
class EngineRate:
    """Seconds of an engine: for a step, for each sequence that it decodes in a step, for each token that it reads."""

    step_s: float
    decode_s: float
    prefill_s: float


@dataclass(frozen=True)
class TrainerRate:
    """Seconds of the trainer: for a step, and for each token of its batch."""

    step_s: float
    token_s: float
    handover_s: float = 0.0
    """From a batch being there to its step, and from the step's end to the controller."""


@dataclass(frozen=True)
class Rates:
    """What a plan is made from."""

    groups: tuple[tuple[Played, ...], ...]
    """In the order they were opened."""
    engine: EngineRate
    trainer: TrainerRate
    delivery_s: float
    """From a step's end until the engines hold its version."""


def rollout_line(sample: Sample) -> dict[str, Any]:
    """The line of a rollout that has come in: `turns` are [tokens read, tokens sampled, seconds of tools]. `failed`
    is there where machinery did: the first words of why."""
    failed = {"failed": sample.outcome.what[:FIRST_WORDS]} if isinstance(sample.outcome, InfraFailed) else {}
    return {
        "id": sample.id,
        "group": sample.group_id,
        "reward": reward_of(sample.outcome),
        "verdict": verdict_of(sample.outcome),
        "seconds": round(sample.seconds, 4),
        "session_s": round(sample.session_s, 4),
        "turns": [list(turn) for turn in sample.turns],
        **failed,
    }


def engine_line(gauges: Mapping[str, Any], elapsed_s: float) -> dict[str, Any]:
    """The line of an engine's counters at one moment."""
    names = ("busy_s", "work_s", "steps", "decode_tokens", "prefill_tokens")
    return {"elapsed_s": round(elapsed_s, 3), **{name: gauges.get(name, 0) for name in names}}


def read_rates(directory: Path, name: str = "") -> Rates:
    """The rates of the run in this directory; `name` is what it is called in errors. Raises ConfigError where it has
    not gone on for long enough."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        raise ConfigError(f"{directory}: no run to learn rates from; name the directory of one, or leave --from out")
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in rows(path):
        lines[line["kind"]].append(line)
    return rates_of(lines, name or str(directory))


def rates_of(lines: Mapping[str, Sequence[dict[str, Any]]], origin: str) -> Rates:
    """The rates that lines of metrics, by their kind, tell of."""
    rollouts, steps = lines.get("rollout", ()), lines.get("step", ())
    if len(rollouts) < LEAST_ROLLOUTS or len(steps) < LEAST_STEPS or len(lines.get("engine", ())) < 2:
        raise ConfigError(
            f"{origin}: {len(rollouts)} rollouts, {len(steps)} steps and {len(lines.get('engine', ()))} gauges of the "
            f"engine are too few to learn rates from: {LEAST_ROLLOUTS}, {LEAST_STEPS} and 2 are needed; let it go on "
            "for longer"
        )
    delivered = [line["lag_ms"] / 1000 for line in lines.get("delivery", ())]
    return Rates(
        groups=_groups(rollouts),
        engine=_engine(lines["engine"], rollouts),
        trainer=_trainer(steps),
        delivery_s=statistics.median(delivered) if delivered else 0.0,
    )


def _groups(rollouts: Iterable[Mapping[str, Any]]) -> tuple[tuple[Played, ...], ...]:
    groups: dict[str, list[Played]] = defaultdict(list)
    for line in {line["id"]: line for line in rollouts}.values():  # a resumed run counts some again
        turns = tuple(Turn(int(read), int(said), tools_s) for read, said, tools_s in line["turns"])
        outside_s = max(0.0, line["seconds"] - line["session_s"])
        groups[line["group"]].append(Played(turns, outside_s / 2, outside_s / 2, line["reward"], line.get("verdict")))
    largest = max(len(members) for members in groups.values())
    order = sorted(groups, key=lambda name: int(name.removeprefix("g")))
    return tuple(tuple(groups[name]) for name in order if len(groups[name]) >= WHOLE * largest)


def _engine(gauges: Sequence[Mapping[str, Any]], rollouts: Iterable[Mapping[str, Any]]) -> EngineRate:
    """Least squares over the stretches between gauges, no rate below zero; their sum is the engine's busy time. Of what
    a turn has to read, part is in a cache already, and costs nothing.
    """
    names = ("steps", "decode_tokens", "prefill_tokens", "busy_s")
    table = np.array([[float(line[name]) for name in names] for line in gauges])
    stretches = np.diff(table, axis=0)
    stretches = stretches[stretches[:, 0] > 0]
    if not len(stretches):
        raise ConfigError("the engine made no step between its gauges: let the run go on for longer")
    step_s, decode_s, prefill_s = map(float, least_squares(stretches[:, :3], stretches[:, 3]))
    said, read = (sum(turn[at] for line in rollouts for turn in line["turns"]) for at in (1, 0))
    _, decoded, computed, _ = map(float, stretches.sum(0))
    uncached = min(1.0, computed / max(decoded, 1.0) * said / max(read, 1.0))
    return EngineRate(step_s, decode_s, prefill_s * uncached)


def _trainer(steps: Sequence[Mapping[str, Any]]) -> TrainerRate:
    """The same of steps, which cost something even with few tokens. The first warms up, and is left out."""
    later = steps[1:]
    tokens = np.array([[1.0, float(line["batch_tokens"])] for line in later])
    step_s = np.array([float(line["step_s"]) for line in later])
    base_s, token_s = least_squares(tokens, step_s)
    walls = [float(line.get("step_wall_s", line["step_s"])) for line in later]
    return TrainerRate(float(base_s), float(token_s), max(0.0, float(np.mean(walls) - step_s.mean())))


def least_squares(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Non-negative weights of the columns, scaled so that what is known adds up to what was wanted."""
    weights, columns = np.zeros(known.shape[1]), list(range(known.shape[1]))
    while columns:
        found = np.linalg.lstsq(known[:, columns], wanted, rcond=None)[0]
        if (found >= 0).all():
            weights[columns] = found
            break
        columns.pop(int(found.argmin()))
    if not weights.any():
        weights[int(known.sum(0).argmax())] = 1.0
    total = float((known @ weights).sum())
    return weights * (float(wanted.sum()) / total) if total else weights

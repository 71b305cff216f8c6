"""What a run must have used by its end: every feature that its recipe enables counts its own use, and zero is an error.

Owns which counters those are, and what of them the model decides: that it never made a call is no fault of a run, and
is remarked. Counts nothing itself. Pure functions of a recipe, its model's shape and what was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etude.errors import UnusedFeature
from etude.rollouts.config import RunConfig

if TYPE_CHECKING:
    from etude.models.config import ModelConfig

ALWAYS = (
    "tool_calls", "deltas_published", "delta_bytes_published", "deltas_applied", "roots_verified", "archived",
    "marked_tokens",
)  # fmt: skip
ENOUGH_STEPS = 10
"""From here on some version must have met a sequence half decoded, and every switch of the algorithm a token that it
changes; in a shorter run that is chance."""


SWITCHES = {
    "routes_given": "trainer.router_replay", "low_precision_rows_trained": "model.expert_format",
    "low_precision_rows_sampled": "model.expert_format", "adapters_merged": "trainer.lora",
    "summaries": "harness.summary", "summary_tokens_masked": "harness.summary",
    "summary_tokens_trained": "harness.summary", "drawn_by_difficulty": "rollouts.by_difficulty",
    "audited": "rewards.audit", "engines_borrowed": "fleet.lending", "parity_tokens": "trainer.parity_tokens",
    "quality_judged": "rewards.quality", "own_parts": "rewards.parts", "effort_charged": "rewards.effort",
    "criteria_judged": "rewards.judge", "truncated": "groups.overlong", "evaluated_beside": "evaluation.beside",
    "in_flight_swaps": "rollouts.schedule",
}  # fmt: skip
"""By which key of a recipe a feature is turned on, where it is one key."""
_BY_THE_MODEL = {
    "tool_calls": "the model made no tool call that could be read",
    "parallel_turns": "the model never made two calls in one turn",
    "effort_charged": "no rollout was solved, of which alone effort is charged",
}


def unused(wanted: Sequence[str], counters: Mapping[str, Any]) -> list[str]:
    """Of the wanted counters, those at zero."""
    return [name for name in wanted if not counters.get(name)]


def remarks(names: Sequence[str], counters: Mapping[str, Any]) -> list[str]:
    """What is said of unused features whose use was the model's to decide."""
    return [_BY_THE_MODEL[name] for name in names if _is_models(name, counters)]


def require_used(names: Sequence[str], counters: Mapping[str, Any]) -> None:
    """Raises UnusedFeature where one of these unused features is the run's own fault."""
    faults = [name for name in names if not _is_models(name, counters)]
    if faults:
        said = ", ".join(f"{name} (of {SWITCHES[name]})" if name in SWITCHES else name for name in faults)
        raise UnusedFeature(
            f"enabled, but never used in this run: {said}; leave out what cannot act there. Its figures are in "
            "summary.json, its lines in metrics.jsonl"
        )


def _is_models(name: str, counters: Mapping[str, Any]) -> bool:
    return name in _BY_THE_MODEL and not (name == "effort_charged" and counters.get("solved"))


def used(config: RunConfig, model: ModelConfig, steps: int, restored: bool, planted: bool = False) -> list[str]:
    """Counters that a run of so many steps leaves at more than zero. `restored`: it went on from a life that was
    killed, with whose engines their last counts are lost. `planted`: one of its tasks plants a cheat.
    """
    enough = steps >= ENOUGH_STEPS
    of_engine = config.engine.features if enough or not restored else []
    beside = config.evaluation.beside
    saved = ["saved_beside"] if steps >= 2 * config.rollouts.checkpoint_every - 1 else []  # one may be skipped
    evaluated = ["evaluated_beside"] if beside and steps >= 4 * beside.max_steps else []  # the end breaks one off
    return [
        *used_at_once(config, model, planted),
        *of_engine,
        *(used_in_time(config) if enough else []),
        *saved,
        *evaluated,
    ]


def used_at_once(config: RunConfig, model: ModelConfig, planted: bool = False) -> list[str]:
    """By however short a run. `planted`: one of its tasks plants a cheat."""
    masked, low_precision = config.trainer.credit.mask_summaries, config.model.expert_format != "plain"
    summarised = config.harness.summary is not None
    wanted = {
        # in a trail each call needs the answer of the one before; and what somebody's own tasks want, nobody knows
        "parallel_turns": config.rollouts.family != "trail" and not config.rollouts.tasks,
        "routes_given": config.trainer.replays(model),
        "low_precision_rows_trained": low_precision,
        "low_precision_rows_sampled": low_precision,
        "adapters_merged": config.trainer.lora is not None,
        "summaries": summarised,
        "summary_tokens_masked": summarised and masked,
        "summary_tokens_trained": summarised and not masked,
        "drawn_by_difficulty": config.rollouts.by_difficulty,
        "audited": config.rewards.audit != "off",
        "planted_found": planted,
        "engines_borrowed": config.fleet.lending is not None,
    }
    return [*ALWAYS, *(name for name, is_wanted in wanted.items() if is_wanted)]


def used_in_time(config: RunConfig) -> list[str]:
    """Counters that a run of enough steps leaves at more than zero. In lockstep no sequence meets a new version; and
    without a lag, or where nothing may be stale, nothing that is trained on is older than the weights, so that the
    parity check has nothing to compare. Effort is charged of solved rollouts: where there were some, and it was charged
    of none in so many steps, that is an error.
    """
    free, rewards = config.rollouts.schedule == "free", config.rewards
    older = config.groups.max_staleness > 0 if free else config.rollouts.lag > 0
    wanted = {
        "in_flight_swaps": free,
        "parity_tokens": config.trainer.parity_tokens > 0 and older,
        "quality_judged": bool(rewards.quality.looked_at),
        "own_parts": bool(rewards.parts),
        "effort_charged": rewards.effort.enabled and rewards.effort.scale > 0,
        "criteria_judged": rewards.judge is not None,
        "truncated": config.groups.overlong == "drop",
    }
    return [*(name for name, is_wanted in wanted.items() if is_wanted), *config.trainer.features]

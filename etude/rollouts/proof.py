"""What a run must have used by its end: every feature that its recipe enables counts its own use, and zero is an error.

Owns which counters those are. Counts nothing itself; `stats.prove_use` looks at them. Pure functions of a recipe and
its model's shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    without a lag nothing that is trained on is older than the weights, so that the parity check has nothing to compare.
    Effort is charged of solved rollouts: of none in so many steps is an error.
    """
    free, rewards = config.rollouts.schedule == "free", config.rewards
    wanted = {
        "in_flight_swaps": free,
        "parity_tokens": config.trainer.parity_tokens > 0 and (free or config.rollouts.lag > 0),
        "quality_judged": bool(rewards.quality.looked_at),
        "own_parts": bool(rewards.parts),
        "effort_charged": rewards.effort.enabled and rewards.effort.scale > 0,
        "criteria_judged": rewards.judge is not None,
        "truncated": config.groups.overlong == "drop",
    }
    return [*(name for name, is_wanted in wanted.items() if is_wanted), *config.trainer.features]

"""The figures of a run, from what was evaluated.

Owns the names of the quickstart's last line and the intervals beside them. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.rewards.rates import wilson
from etude.rollouts.evaluate import Judged, pass_rate
from etude.tasks.ladder import RUNGS


def rate(results: Sequence[Judged], **facts: Any) -> float | None:
    """None where nothing was played: a rate nobody measured is not zero."""
    passed, played = pass_rate(results, **facts)
    return passed / played if played else None


def summarise(base: Sequence[Judged], after: Sequence[Judged], control: Sequence[Judged]) -> dict[str, Any]:
    """pass@1 before, after and of the control: the ladder, its rungs, the held-out ladder, real code."""
    return {
        "base_pass1": rate(base, split="eval"),
        "base_pass1_ci": wilson(*pass_rate(base, split="eval")),
        "pass1": rate(after, split="eval"),
        "pass1_ci": wilson(*pass_rate(after, split="eval")),
        "sft_control_pass1": rate(control, split="eval"),
        "sft_control_pass1_ci": wilson(*pass_rate(control, split="eval")),
        "heldout_before": rate(base, split="heldout"),
        "heldout_after": rate(after, split="heldout"),
        "heldout_control": rate(control, split="heldout"),
        "real_before": rate(base, split="real"),
        "real_after": rate(after, split="real"),
        "rungs": {
            str(rung): [rate(results, split="eval", rung=rung) for results in (base, after, control)] for rung in RUNGS
        },
    }

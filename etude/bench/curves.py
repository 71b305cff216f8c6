"""How training went, step by step, as plots: what the report of a run draws from its metrics.jsonl.

Owns `curves`. Each plot stands for lines that have its figures, and is left out where none has: a run of an older Etude
knows fewer. Computes nothing but the spread of lengths among the rollouts that came in lately.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from etude.bench.html import figure, svg

LATELY = 128
"""Rollouts of which the lengths are told at a step: as many as its rates are of."""
_GOOD, _MARK, _BAD, _FAINT = "#2a8a4a", "#2f6fed", "#d0453a", "#b05ccf"
_PARTS = ("#2a8a4a", "#d0453a", "#e08a2e", "#b05ccf", "#2f6fed", "#7a8699", "#1aa5a5", "#8a5a2b")
_DASHES = ("-", "--", ":")
Row = Mapping[str, Any]


def curves(rows: Iterable[Row]) -> str:
    """The plots, as HTML, of the lines of metrics.jsonl in their order."""
    rows = list(rows)
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return "<p class=faint>The run has made no step.</p>"
    lengths = _lengths(rows)
    plots = [
        _learning(steps),
        _parts(steps),
        _spread(steps, lengths["turns"], "turns of a rollout"),
        _spread(steps, lengths["sampled_tokens"], "tokens sampled in a rollout"),
        _gradient(steps),
        _drift(steps),
    ]
    return "".join(plots)


def axes_of(drawn: Any, title: str) -> Any:
    """The axes of a plot that says above it what it shows."""
    axes = drawn.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    axes.tick_params(which="both", labelsize=8)
    return axes


def _over_time(title: str) -> tuple[Any, Any]:
    drawn = figure(6, 2.9)
    axes = axes_of(drawn, title)
    axes.set_xlabel("minutes since the start", fontsize=8)
    return drawn, axes


def _named(axes: Any, columns: int = 2) -> None:
    """The legend, below the plot: inside it would hide some of it."""
    axes.legend(frameon=False, fontsize=8, ncols=columns, loc="upper left", bbox_to_anchor=(0, -0.22), borderaxespad=0)


def _minutes(steps: Sequence[Row]) -> list[float]:
    return [step["elapsed_s"] / 60 for step in steps]


def _learning(steps: Sequence[Row]) -> str:
    drawn, axes = _over_time("Solved, and reward")
    minutes = _minutes(steps)
    axes.plot(minutes, [step["solve_rate"] for step in steps], color=_GOOD, label=f"solved, of the last {LATELY}")
    axes.plot(minutes, [step["reward"] for step in steps], color=_FAINT, lw=0.9, label="mean reward of the batch")
    axes.set_ylim(min(0, *(step["reward"] for step in steps)), 1)
    _named(axes)
    return svg(drawn)


def _parts(steps: Sequence[Row]) -> str:
    """The parts of the batch's mean reward; those that were never other than 0 are named alone."""
    told = [step for step in steps if step.get("parts")]
    if not told:
        return ""
    drawn, axes = _over_time("Reward by part, mean of the batch")
    names = sorted({name for step in told for name in step["parts"]}, key=lambda name: (name != "tests", name))
    acted = [name for name in names if any(step["parts"].get(name) for step in told)]
    for place, name in enumerate(acted):
        values = [step["parts"].get(name, 0.0) for step in told]
        style = {"color": _PARTS[place % len(_PARTS)], "ls": _DASHES[place // len(_PARTS) % len(_DASHES)]}
        axes.plot(_minutes(told), values, label=name, **style)
    axes.axhline(0, color="#8a94a6", lw=0.6)
    if idle := [name for name in names if name not in acted]:
        axes.set_xlabel(f"minutes since the start; always 0: {', '.join(idle)}", fontsize=8)
    if acted:
        _named(axes, columns=4)
    return svg(drawn)


def _lengths(rows: Iterable[Row]) -> dict[str, list[tuple[float, float, float] | None]]:
    """Of the rollouts that came in lately at each step: the 10th, 50th and 90th of 100 by length; None where there are
    none.
    """
    lately: deque[tuple[int, float]] = deque(maxlen=LATELY)
    found: dict[str, list[tuple[float, float, float] | None]] = {"turns": [], "sampled_tokens": []}
    for row in rows:
        if row["kind"] == "rollout" and row.get("turns"):
            lately.append((len(row["turns"]), sum(turn[1] for turn in row["turns"])))
        elif row["kind"] == "step":
            for place, name in enumerate(found):
                lengths = [each[place] for each in lately]
                low, middle, high = np.quantile(lengths, (0.1, 0.5, 0.9)) if lengths else (math.nan,) * 3
                found[name].append((float(low), float(middle), float(high)) if lengths else None)
    return found


def _spread(steps: Sequence[Row], lengths: Sequence[tuple[float, float, float] | None], what: str) -> str:
    told = [(minute, each) for minute, each in zip(_minutes(steps), lengths, strict=True) if each is not None]
    if not told:
        return ""
    drawn, axes = _over_time(f"{what[0].upper()}{what[1:]}, of the last {LATELY}")
    minutes = [minute for minute, _ in told]
    low, middle, high = zip(*(each for _, each in told), strict=True)
    axes.fill_between(minutes, low, high, color=_MARK, alpha=0.18, lw=0, label="80% of them")
    axes.plot(minutes, middle, color=_MARK, label="the median")
    axes.set_ylim(bottom=0)
    _named(axes)
    return svg(drawn)


def _gradient(steps: Sequence[Row]) -> str:
    """Norms before clipping; steps without a finite one have changed nothing."""
    told = [step for step in steps if step.get("grad_norm")]
    finite = [step for step in told if math.isfinite(step["grad_norm"])]
    if not finite:
        return ""
    drawn, axes = _over_time("Norm of the gradient, before it is clipped")
    axes.semilogy(_minutes(finite), [step["grad_norm"] for step in finite], color=_MARK, lw=1, label="norm")
    clipped = [step for step in finite if step.get("used", {}).get("clipped_steps")]
    label = f"clipped: {len(clipped)} of {len(steps)} steps"
    axes.semilogy(_minutes(clipped), [step["grad_norm"] for step in clipped], ".", color=_BAD, label=label)
    if skipped := len(told) - len(finite):
        axes.set_xlabel(f"minutes since the start; {skipped} steps skipped, not finite", fontsize=8)
    _named(axes)
    return svg(drawn)


def _drift(steps: Sequence[Row]) -> str:
    drawn, axes = _over_time("How far the policy is from its sampler")
    minutes = _minutes(steps)
    drift = [step["mismatch_k3"] or math.nan for step in steps]  # no logarithm of 0: on policy, to the bit
    axes.semilogy(minutes, drift, color=_BAD, label="KL to the sampler (k3)")
    axes.semilogy(minutes, [step["entropy"] or math.nan for step in steps], color=_MARK, label="entropy")
    _named(axes)
    return svg(drawn)

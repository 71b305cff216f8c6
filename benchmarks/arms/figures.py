"""What is made of the records: rates and differences with their intervals, and the curves.

Owns the bootstrap. Outcomes of an arm are a matrix, seeds by tasks; a difference between two arms is that of their
matrices, over the seeds that both have, so it is paired by task and by seed. Every draw takes seeds and tasks anew,
with replacement, and the same tasks for all seeds (Owen, arXiv 0712.1111). Plain draws of S seeds vary too little, by
the factor (S - 1) / S of the variance; how far each draw's weights lie from equal is widened to make up for it. Of a
single seed, tasks alone are drawn, and the interval says nothing of other seeds. Trains and plays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arms.records import Outcomes, Record
from etude.bench.html import figure
from etude.rewards.rates import wilson

DRAWS = 4000
UPPER = 6
"""The first rung on which nothing tells the mend."""
PAIRS = (("sft_rl", "sft_long"), ("rl", "sft_long"), ("rl", "rft"))
COLOURS = {
    "base": "#555555", "rl": "#2f6fed", "sft": "#e0b02e", "sft_long": "#e08a2e", "sft_rl": "#2a8a4a", "rft": "#b05ccf",
    "sft_masked": "#8a94a6",
}  # fmt: skip

Matrix = NDArray[np.float64]  # [seeds, tasks]


def _is(split: str, wanted: Callable[[int], bool] = lambda rung: True) -> Callable[[str], bool]:
    def belongs(group: str) -> bool:
        name, _, rung = group.partition("-")
        return name == split and (not rung or wanted(int(rung)))

    return belongs


SETS = {
    "ladder": _is("eval"), "lower": _is("eval", lambda rung: rung < UPPER), "upper": _is("eval", lambda r: r >= UPPER),
    "heldout": _is("heldout"), "heldout_lower": _is("heldout", lambda rung: rung < UPPER),
    "heldout_upper": _is("heldout", lambda rung: rung >= UPPER), "real": _is("real"),
}  # fmt: skip
"""What is reported → whether a group of tasks belongs to it."""


# --- the bootstrap ----------------------------------------------------------------------------------------------------


def interval(values_ST: Matrix, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """95%, of the mean of `values_ST`."""
    rng, (seeds, tasks) = np.random.default_rng(seed), values_ST.shape
    by_task_DT = rng.multinomial(tasks, np.full(tasks, 1 / tasks), draws) / tasks
    by_seed_DS = np.full((draws, seeds), 1 / seeds)
    if seeds > 1:
        drawn_DS = rng.multinomial(seeds, by_seed_DS[0], draws) / seeds
        by_seed_DS += (drawn_DS - by_seed_DS) * math.sqrt(seeds / (seeds - 1))
    means_D = ((by_seed_DS @ values_ST) * by_task_DT).sum(1)
    low, high = np.quantile(means_D, [0.025, 0.975])
    return float(low), float(high)


def rate(outcomes: Sequence[Outcomes], belongs: Callable[[str], bool]) -> dict[str, Any] | None:
    """Of all seeds together; None where no task belongs to it."""
    values_ST = matrix(outcomes, belongs)
    if not (tasks := values_ST.shape[1]):
        return None
    mean = float(values_ST.mean())
    if mean in (0.0, 1.0):  # no draw would differ, and yet other tasks might
        return {"rate": mean, "interval": wilson(mean * tasks, tasks), "tasks": tasks}
    low, high = interval(values_ST)
    return {"rate": mean, "interval": (max(0.0, low), min(1.0, high)), "tasks": tasks}


def difference(ours: Sequence[Outcomes], others: Sequence[Outcomes], belongs: Callable[[str], bool]) -> dict[str, Any]:
    """The mean of `ours` less that of `others`, seed by seed."""
    values_ST = matrix(ours, belongs) - matrix(others, belongs)
    return {"difference": float(values_ST.mean()), "interval": interval(values_ST), "seeds": len(values_ST)}


def matrix(outcomes: Sequence[Outcomes], belongs: Callable[[str], bool]) -> Matrix:
    """Of 0 and 1."""
    groups = [group for group in outcomes[0] if belongs(group)]
    return np.asarray([[float(each) for group in groups for each in seed[group]] for seed in outcomes])


# --- the report -------------------------------------------------------------------------------------------------------


def report(records: Iterable[Record]) -> dict[str, Any]:
    """All figures, for the last line."""
    arms: dict[str, dict[int, Record]] = {}
    for record in records:
        arms.setdefault(record.arm, {})[record.seed] = record
    figures: dict[str, Any] = {}
    for arm, by_seed in arms.items():
        figures[arm] = rates([each.outcomes for each in by_seed.values()])
        if greedy := [each.greedy for each in by_seed.values() if each.greedy is not None]:
            figures[arm]["greedy"] = rates(greedy)
    for ours, others in PAIRS:
        both = sorted(arms.get(ours, {}).keys() & arms.get(others, {}).keys())
        pair = [[arms[arm][seed].outcomes for seed in both] for arm in (ours, others)]
        for name, belongs in SETS.items():
            if both and any(map(belongs, pair[0][0])):
                suffix = "" if name == "ladder" else f"_{name}"
                figures[f"{ours}_minus_{others}{suffix}"] = difference(*pair, belongs)
    trained = {arm: list(by_seed.values()) for arm, by_seed in arms.items() if arm != "base"}
    return figures | {
        "cpu_s": {arm: float(np.mean([each.cpu_s for each in found])) for arm, found in trained.items()},
        "samples": {arm: float(np.mean([each.samples for each in found])) for arm, found in trained.items()},
        "seeds": {arm: sorted(each.seed for each in found) for arm, found in trained.items()},
        "commits": sorted({each.commit for by_seed in arms.values() for each in by_seed.values()}),
    }


def rates(outcomes: Sequence[Outcomes]) -> dict[str, Any]:
    return {name: found for name, belongs in SETS.items() if (found := rate(outcomes, belongs)) is not None}


def table(figures: dict[str, Any], arms: Iterable[str]) -> str:
    """For people: per cent, with the interval."""
    shown = [arm for arm in arms if arm in figures]
    lines = [f"{'':12}" + "".join(f"{name:>22}" for name in SETS)]
    for arm in shown:
        lines.append(f"{arm:12}" + "".join(f"{_percent(figures[arm].get(name)):>22}" for name in SETS))
    for name, found in figures.items():
        if "_minus_" in name:
            low, high = found["interval"]
            lines.append(f"{name}: {100 * found['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")
    return "\n".join(lines)


def _percent(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    low, high = found["interval"]
    return f"{100 * found['rate']:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def draw(records: Sequence[Record], path: Path) -> None:
    """Solved of the curves' tasks, against CPU seconds and against samples: a thin line a seed, and a thick one through
    the means of arms whose seeds have as many points. Every line begins at the base.
    """
    start = [each.curve[-1] for each in records if each.arm == "base" and each.curve]
    drawn = figure(9, 3.6)
    for axes, along, label in zip(
        drawn.subplots(1, 2, sharey=True), ("cpu_s", "samples"), ("CPU seconds", "samples"), strict=True
    ):
        for arm in COLOURS:
            points = [start + list(each.curve) for each in records if each.arm == arm != "base" and each.curve]
            lines = [
                [(getattr(point, along), 100 * point.solved / point.played) for point in curve] for curve in points
            ]
            for line in lines:
                axes.plot(*zip(*line, strict=True), color=COLOURS[arm], alpha=0.3, linewidth=1)
            if lines and len({len(line) for line in lines}) == 1:
                mean = np.asarray(lines).mean(0)
                axes.plot(mean[:, 0], mean[:, 1], "o-", color=COLOURS[arm], linewidth=2, markersize=3, label=arm)
        axes.set(xlabel=label, ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
        if along == "cpu_s":
            axes.set_ylabel("solved, %")
            axes.legend(frameon=False)
    drawn.savefig(path)

"""How a policy's behaviour changes with the compute it is trained with.

Owns `behaviour_of`: the measures that a run logs at every step, against the floating-point operations of training up to
there, each with a line fitted over the logarithm of compute and that line's 95% interval. Steps that follow one another
are alike, so the interval is a bootstrap of residuals in blocks of steps, not one by one. `behaviour_page` draws it;
neither plays or trains anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from etude.bench.html import figure, svg, text, write_html
from etude.errors import ConfigError
from etude.models.checkpoint import check_checkpoint
from etude.models.size import active_parameters
from etude.rollouts.lines import rows

MEASURES = {
    "solve_rate": "share of rollouts solved",
    "turns": "turns a session",
    "sampled_tokens": "tokens sampled a session",
    "calls_per_turn": "tool calls a turn",
    "parallel_share": "share of turns with parallel calls",
    "looks_before_edit": "reads and searches before the first edit",
    "terminal_share": "share of calls that are the terminal's",
    "malformed_calls": "malformed calls a session",
    "errors": "results that were errors, a session",
    "edits_read_first": "share of edits of files read before",
    "tests_written": "test files written, a session",
    "tests_run": "runs of tests, a session",
    "own_tests_run": "share of sessions that ran the tests they wrote",
    "lint_checks": "looks at lints, a session",
    "lints_fixed": "share of the lints told that were fixed",
    "unchecked_claims": "share of sessions that claim tests they did not run",
}
"""All are of the log's own counts. A step that had no occasion for one has none of it, and is left out of its line."""
FEWEST_STEPS = 8
_DRAWS, _BLOCKS, _GRID = 1000, 12, 40
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
    """`slope` is the change for ten times the compute; `low` and `high` its 95% interval. The grid is for drawing."""

    measure: str
    compute: Array
    values: Array
    slope: float
    low: float
    high: float
    grid: Array
    line: Array
    band: tuple[Array, Array]


def behaviour_of(run: Path) -> list[Trend]:
    """Of a run of `etude train`, finished or not. Raises ConfigError for a directory without one, or with too few
    steps to fit a line to."""
    steps = _steps(run)
    if len(steps) < FEWEST_STEPS:
        raise ConfigError(f"{run}: {len(steps)} steps are too few to fit a line to; {FEWEST_STEPS} are needed")
    recipe = json.loads((run / "recipe.json").read_text())
    a_token = 6 * active_parameters(check_checkpoint(Path(recipe["model"]["path"])))
    compute = a_token * np.cumsum([step["batch_tokens"] for step in steps], dtype=np.float64)
    trends = []
    for measure in MEASURES:
        values = np.array([step.get(measure) for step in steps], dtype=np.float64)  # None is no number
        known = ~np.isnan(values)
        if known.sum() >= FEWEST_STEPS:
            trends.append(_trend(measure, compute[known], values[known]))
    return trends


def _steps(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    if not path.exists() or not (run / "recipe.json").exists():
        raise ConfigError(f"{run}: no run of `etude train` here; name its directory")
    by_step = {row["step"]: row for row in rows(path) if row["kind"] == "step"}  # a resumed run may tell of one twice
    return [by_step[step] for step in sorted(by_step)]


def _trend(measure: str, compute: Array, values: Array) -> Trend:
    x = np.log10(compute)
    grid = np.linspace(x[0], x[-1], _GRID)
    slope, start = _fit(x, values)
    fitted = start + slope * x
    drawn = [_fit(x, fitted + (values - fitted)[chosen]) for chosen in _resampled(len(x))]
    lines = np.array([start + slope * grid for slope, start in drawn])
    low, high = np.quantile([slope for slope, _ in drawn], (0.025, 0.975))
    band = np.quantile(lines, (0.025, 0.975), axis=0)
    return Trend(
        measure, compute, values, slope, float(low), float(high), 10**grid, start + slope * grid, (band[0], band[1])
    )


def _fit(x: Array, y: Array) -> tuple[float, float]:
    """Slope and intercept of the least squares; a flat line where all x are one."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (y - y.mean())) / spread if spread > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())


def _resampled(size: int) -> list[npt.NDArray[np.int64]]:
    """Indices of draws: blocks of neighbouring steps, drawn with replacement. The same every time."""
    rng, length = np.random.default_rng(0), max(1, math.ceil(size / _BLOCKS))
    starts = rng.integers(0, size - length + 1, (_DRAWS, math.ceil(size / length)))
    return [(row[:, None] + np.arange(length)).ravel()[:size] for row in starts]


def as_json(trends: Sequence[Trend]) -> dict[str, Any]:
    """`first` and `last` are the line's, at the first step and at the last."""
    measures = {
        trend.measure: {
            "first": float(trend.line[0]), "last": float(trend.line[-1]), "per_decade": trend.slope,
            "low": trend.low, "high": trend.high,
        }
        for trend in trends
    }  # fmt: skip
    return {"steps": len(trends[0].compute), "flops": float(trends[0].compute[-1]), "measures": measures}


def trends_summary(trends: Sequence[Trend]) -> str:
    """A line a measure."""
    flops = trends[0].compute
    lines = [f"{len(flops)} steps, {flops[0]:.2g} to {flops[-1]:.2g} floating-point operations of training"]
    lines.append(f"{'':<44} {'from':>8} {'to':>8}   change for ten times the compute")
    for trend in trends:
        moved = f"{trend.slope:+.3g}   95%: {trend.low:+.3g} to {trend.high:+.3g}"
        lines.append(f"{MEASURES[trend.measure]:<44} {trend.line[0]:>8.3g} {trend.line[-1]:>8.3g}   {moved}")
    return "\n".join(lines)


def behaviour_page(run: Path, trends: Sequence[Trend]) -> Path:
    """Write behaviour.html into the run's directory; returns its path."""
    title = f"{run.resolve().name}: behaviour against training compute"
    return write_html(
        run / "behaviour.html",
        title,
        (f"<h1>{text(title)}</h1>", _figure(trends), f"<pre>{text(trends_summary(trends))}</pre>"),
    )


def _figure(trends: Sequence[Trend]) -> str:
    rows = math.ceil(len(trends) / 3)
    drawn = figure(11, 2.7 * rows)
    for place, trend in enumerate(trends):
        axes = drawn.add_subplot(rows, 3, place + 1)
        axes.set_xscale("log")
        axes.plot(trend.compute, trend.values, ".", color="#9aa7bd", markersize=4)
        axes.fill_between(trend.grid, *trend.band, color="#2f6fed", alpha=0.18, linewidth=0)
        axes.plot(trend.grid, trend.line, color="#2f6fed")
        axes.set_title(MEASURES[trend.measure], fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        if place >= len(trends) - 3:
            axes.set_xlabel("floating-point operations of training", fontsize=9)
    return svg(drawn)

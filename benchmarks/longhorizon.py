"""What it is worth to train summaries: the same reinforcement learning with their tokens in the loss, and without.

    python benchmarks/longhorizon.py [--out runs/longhorizon] [--seeds 3] [--minutes 2.6] [--plot curves.svg]

Tasks are trails (`etude.tasks.trail`), of which all but the first rung outgrow the window. First the model to begin
from is made (recipes/longhorizon-start.toml); then recipes/longhorizon.toml runs from it for every seed and either arm:

    trained   every sampled token has the trajectory's advantage, summaries included (the default)
    masked    the same, with the tokens of summaries left out of the loss (trainer.credit.mask_summaries)

Both arms compute the same and see the same tasks. Every policy then plays held-out tasks, of the words that training
has and of words that no training data contains; and, to show that the window is too short, rungs 2 and 3 once more by
an agent that is never summarised. A run that is there already is not repeated. The curves are the solve rates of the
tasks that training draws, none of them twice, over the latest 128 rollouts. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from playing import played, request_of

from etude.config import load_recipe
from etude.records import Task, Trajectory, solved
from etude.rewards.rates import wilson
from etude.rollouts.config import RunConfig
from etude.tasks.trail import trail_task

ROOT = Path(__file__).resolve().parent.parent
RECIPE, START = ROOT / "recipes/longhorizon.toml", ROOT / "recipes/longhorizon-start.toml"
ARMS = {"trained": "false", "masked": "true"}
COLOURS = {"trained": "#0072b2", "masked": "#d55e00"}
FIRST = 5000
"""Seed of the first held-out task; a run's own evaluation takes those from 0 on."""


def etude(*arguments: str) -> dict[str, Any]:
    """A command of Etude's in a process of its own; what its last line says."""
    command = [sys.executable, "-m", "etude.cli.main", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def started(directory: Path) -> Path:
    """The model that every run begins from."""
    if not (directory / "model/config.json").exists():
        print(json.dumps(etude("pretrain", str(START), "--out", str(directory))), flush=True)
    return directory / "model"


def trained(out: Path, arm: str, seed: int, model: Path, minutes: float) -> Path:
    """The directory of that run, played to its end."""
    directory = out / f"{arm}-{seed}"
    sets = [
        f"seed={seed}",
        f'model.path="{model}"',
        f"rollouts.max_minutes={minutes}",
        f"trainer.credit.mask_summaries={ARMS[arm]}",
        "evaluation.per_rung=1",
        "evaluation.heldout_per_rung=0",
    ]
    if not (directory / "summary.json").exists():
        resume = ["--resume"] if (directory / "recipe.json").exists() else []
        overrides = [part for each in sets for part in ("--set", each)]
        etude("train", str(RECIPE), "--out", str(directory), "--json", *overrides, *resume)
    return directory


# --- held-out tasks ---------------------------------------------------------------------------------------------------


async def trajectories(model: Path, config: RunConfig, tasks: list[Task]) -> dict[str, Trajectory]:
    """Each task once, by draws of its own: the same for every policy."""
    requests = [request_of(task, "longhorizon") for task in tasks]
    return {request.task.id: trajectory async for request, trajectory in played(model, config, requests)}


def measured(model: Path, config: RunConfig, count: int, name: str) -> dict[str, Any]:
    """Solve rates by set, with intervals, and how many of the summaries hold every word read so far."""
    sets = {(split, rung): [trail_task(rung, split, FIRST + at) for at in range(count)]
            for split in ("eval", "heldout") for rung in (2, 3)}  # fmt: skip
    tasks = [task for each in sets.values() for task in each]
    found = asyncio.run(trajectories(model, config, tasks))
    figures: dict[str, Any] = {}
    for (split, rung), members in sets.items():
        won = sum(solved(found[task.id].outcome) for task in members)
        figures[f"{split} {rung}"] = {"solved": won / count, "interval": wilson(won, count)}
    kept = [whole for task in tasks for whole in whole_summaries(task, found[task.id])]
    figures["whole_summaries"] = sum(kept) / len(kept) if kept else None
    line = "  ".join(f"{key} {each['solved']:.1%}" for key, each in figures.items() if isinstance(each, dict))
    print(f"{name:22} {line}  whole summaries {figures['whole_summaries'] or math.nan:.1%}", flush=True)
    return figures


def whole_summaries(task: Task, trajectory: Trajectory) -> list[bool]:
    """Of each summary: whether it has the words of all modules read by then, in order."""
    facts, seen, whole = task.provenance["facts"], 0, []
    for event in trajectory.events:
        if event.kind == "tool_result":
            seen += any(event.data["text"].startswith(f'"""{word}:') for word in facts[seen : seen + 1])
        elif event.kind == "summary":
            whole.append(" ".join(facts[:seen]) in event.data["text"])
    return whole


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(directory: Path) -> tuple[list[float], list[float]]:
    """Minutes of training, and the solve rate of the latest rollouts, at every step."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    return [line["elapsed_s"] / 60 for line in steps], [line["solve_rate"] for line in steps]


def draw(runs: dict[str, list[Path]], measures: dict[str, Any], path: Path) -> None:
    """Left: training, a line a seed and the mean. Right: held-out tasks after it, a point a seed with its interval."""
    from matplotlib import pyplot  # only to draw

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, width_ratios=(5, 3))
    for arm, directories in runs.items():
        curves = [curve(directory) for directory in directories]
        grid = np.linspace(0, min(minutes[-1] for minutes, _ in curves), 80)
        lines = np.asarray([np.interp(grid, minutes, rates) for minutes, rates in curves]) * 100
        left.plot(grid, lines.T, color=COLOURS[arm], alpha=0.3, linewidth=1)
        left.plot(grid, lines.mean(0), color=COLOURS[arm], linewidth=2.2, label=f"summaries {arm}")
    left.set(xlabel="minutes of training", ylabel="solved, %", title="Training tasks (none twice)", ylim=(0, 100))
    left.legend(frameon=False, loc="upper left")
    labels = {"eval 2": "5 modules", "eval 3": "7 modules"}
    for offset, arm in ((-0.16, "trained"), (0.16, "masked")):
        for seed, directory in enumerate(runs[arm]):
            for at, label in enumerate(labels):
                figures, x = measures[directory.name][label], at + offset + 0.08 * (seed - 1)
                right.plot([x, x], [100 * bound for bound in figures["interval"]], color=COLOURS[arm], alpha=0.4)
                right.plot(x, 100 * figures["solved"], "o", color=COLOURS[arm], markersize=4)
    for at, label in enumerate(labels):
        base = 100 * measures["start"][label]["solved"]
        right.plot([at - 0.4, at + 0.4], [base, base], color="#555", linewidth=1, linestyle="--")
    right.set_xticks(range(len(labels)), labels.values())
    right.set(title="Held-out tasks after it (dashed: before)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/longhorizon"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.6, help="of reinforcement learning, each run")
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks of each set")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    out = options.out.resolve()
    model = started(out / "start")
    runs = {arm: [out / f"{arm}-{seed}" for seed in range(options.seeds)] for arm in ARMS}
    for seed in range(options.seeds):
        for arm in ARMS:
            trained(out, arm, seed, model, options.minutes)
    config = load_recipe(RECIPE, RunConfig)
    short = config.model_copy(update={"harness": config.harness.model_copy(update={"summary": None})})
    measures = {"start": measured(model, config, options.tasks, "start")}
    measures |= {each.name: measured(each / "model", config, options.tasks, each.name)
                 for directories in runs.values() for each in directories}  # fmt: skip
    best = runs["trained"][0]
    measures["no summaries"] = measured(best / "model", short, options.tasks, f"{best.name}, no summaries")
    if options.plot:
        draw(runs, measures, options.plot)
    print(json.dumps({"minutes": options.minutes, "tasks": options.tasks, **verdict(runs, measures), **measures}))


def verdict(runs: dict[str, list[Path]], measures: dict[str, Any]) -> dict[str, float]:
    """How far each arm is above the start on the rung that is trained, mean of its seeds."""
    before = measures["start"]["eval 2"]["solved"]
    return {
        f"lift_{arm}": float(np.mean([measures[each.name]["eval 2"]["solved"] for each in runs[arm]])) - before
        for arm in runs
    }


if __name__ == "__main__":
    main()

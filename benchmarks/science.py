"""What each switch is worth, one study at a time: the figures of docs/science.md.

    python benchmarks/science.py [STUDY...] [--seeds 0 1 2] [--minutes 4] [--start MODEL] [--out runs/science]
    python benchmarks/science.py --report

A study is a question and a few settings that differ in what is asked, and in nothing else. Each setting trains from the
same checkpoint for the same minutes (`--start`, by default the recipe's own), at every seed, one after the other; its
last checkpoint plays development tasks that no training has. Settings of two studies that are the same are run once.
Solved tasks of all seeds make a rate with its interval, and less the first setting's a paired difference (the bootstrap
of `arms/figures.py`). What else a study looks at, such as turns or samples a second, is the mean over the last quarter
of the steps. Trails have a recipe and a start of their own. `importance` needs PYTHONPATH=benchmarks/low_sampler.

OUT/records has one small file a setting and seed. What is there is not done again, and files of several machines may be
copied into one directory. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms.figures import SETS, difference, rates
from arms.records import development_tasks, outcomes_of
from arms.training import QUIET, commit, late_steps, run
from playing import RECIPE, recipe, solved_tasks

from etude.bench.html import figure
from etude.durable import write_whole
from etude.tasks.families import family

FIRST = 20_000
"""Number of the first task that is played: neither the arms' development tasks nor a run's evaluation have it."""
TRAILS = RECIPE.parent / "longhorizon.toml"


SLOW = "harness.delay=[0.2, 1.0]"
"""Seconds that a call takes longer: the median, and the 99th percentile."""
LOW = 'engine.kind="low"'


@dataclass(frozen=True)
class Study:
    question: str
    settings: dict[str, tuple[str, ...]]
    """Name → overrides of the recipe; the first is the recipe's own."""
    shows: tuple[str, ...] = ("samples_per_s", "mean_age")
    """What of a record is told beside the rate: `samples_per_s`, or one of `LATE`."""
    recipe: Path = RECIPE
    common: tuple[str, ...] = ()


STUDIES = {
    "staleness": Study(
        "How old may a token be that is trained on?",
        {"4": (), "0": ("groups.max_staleness=0",), "1": ("groups.max_staleness=1",), "8": ("groups.max_staleness=8",)},
    ),
    "group-size": Study(
        "Many attempts at few tasks, or few at many? A step has 32 rollouts.",
        {
            "8": (),
            "4": ("groups.size=4", "rollouts.groups_per_step=8"),
            "16": ("groups.size=16", "rollouts.groups_per_step=2"),
            "32": ("groups.size=32", "rollouts.groups_per_step=1"),
        },
        ("samples_per_s", "entropy"),
    ),
    "entropy": Study(
        "Does a price on certainty, or a gate on segments that have moved, keep a policy trying?",
        {"off": (), "bonus": ("trainer.loss.entropy_bonus=0.003",), "gate": ("trainer.loss.gate={band=[0.97, 1.03]}",)},
        ("entropy", "divergence"),
    ),
    "importance": Study(
        "What does the cap on importance weights do where the sampler multiplies in NVFP4 and the trainer does not?",
        {
            "2, one format": (),
            "2": (LOW,),
            "1": (LOW, "trainer.loss.importance_cap=1.0"),
            "none": (LOW, "trainer.loss.importance_cap=inf"),
        },
        ("mismatch_k3", "effective_sample_share", "capped_share", "entropy"),
    ),
    "slow-tools": Study(
        "Where every call takes a while and effort has a price, does it learn to read at once?",
        {
            "fast": (),
            "slow": (SLOW,),
            "slow, free": (SLOW, "rewards.effort.enabled=false"),
        },
        ("parallel_share", "turns", "samples_per_s"),
    ),
    "feedback": Study(
        "Are hints on the message that went wrong worth their time?",
        {
            "off": (),
            "1": ("trainer.credit.feedback={}",),
            "0.1": ("trainer.credit.feedback={weight=0.1}",),
        },
        ("samples_per_s", "malformed_calls", "entropy"),
    ),
    "credit": Study(
        "On trails: the whole trajectory's reward for each segment, or each segment against its like?",
        {"trajectory": (), "segment": ('trainer.credit.baseline="segment"',)},
        ("turns", "sampled_tokens"),
        TRAILS,
    ),
}


RATES = ("ladder", "heldout")
Record = dict[str, Any]
"""What is kept of a run."""
LATE = (
    "mean_age", "mismatch_k3", "entropy", "divergence", "effective_sample_share", "capped_share", "parallel_share",
    "turns", "sampled_tokens", "malformed_calls", "solve_rate",
)  # fmt: skip
"""Of each step; the mean over the last quarter of them is kept."""


@dataclass(frozen=True)
class Run:
    """One training run: a recipe with some overrides, at a seed."""

    recipe: Path
    overrides: tuple[str, ...]
    seed: int

    @property
    def name(self) -> str:
        return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join((self.recipe.stem, *self.overrides, str(self.seed)))).strip("-")


def runs_of(study: Study, seed: int) -> dict[str, Run]:
    """By setting."""
    return {name: Run(study.recipe, (*study.common, *own), seed) for name, own in study.settings.items()}


def play(made: Run, directory: Path, minutes: float, start: Path | None, per_rung: int) -> dict[str, Any]:
    """Train it, and have its last checkpoint play."""
    sets = [*QUIET, f"seed={made.seed}", f"rollouts.max_minutes={minutes}", *made.overrides]
    sets += [f"model.path={json.dumps(str(start))}"] if start is not None else []
    training, config = run(made.recipe, directory, sets), recipe(made.overrides, made.recipe)
    late = late_steps(directory)
    tasks = _tasks(made.recipe, config.rollouts.family, config.rollouts.rungs, per_rung)
    torch.set_num_threads(1)
    solved = solved_tasks(directory / "model", config, tasks, "science")
    return {
        "minutes": minutes,
        "commit": commit(),
        **{name: training[name] for name in ("steps", "rollouts", "cpu_s", "samples_per_s")},
        "late": {name: _mean([line[name] for line in late if line.get(name) is not None]) for name in LATE},
        "outcomes": outcomes_of(tasks, solved),
    }


def _tasks(path: Path, name: str, rungs: Sequence[int], per_rung: int) -> list[Any]:
    if path == RECIPE:
        return development_tasks(FIRST, per_rung, real=False)
    return [family(name).task(rung, "eval", FIRST + number) for number in range(4 * per_rung) for rung in rungs]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def report(out: Path) -> dict[str, Any]:
    """Of all that is there, by study and setting. Settings are compared with the first by the seeds that both have."""
    kept = {path.stem: json.loads(path.read_text()) for path in sorted((out / "records").glob("*.json"))}
    if len(minutes := {each["minutes"] for each in kept.values()}) > 1:
        raise SystemExit(f"{out}/records: runs of {minutes} minutes; keep such records apart")
    seeds = sorted({int(name.rpartition("-")[2]) for name in kept})
    found: dict[str, Any] = {}
    for name, study in STUDIES.items():
        by_seed = [{setting: kept.get(made.name) for setting, made in runs_of(study, seed).items()} for seed in seeds]
        first = next(iter(study.settings))
        for setting in study.settings:
            done = [each[setting] for each in by_seed if each[setting]]
            both = [(each[setting], each[first]) for each in by_seed if each[setting] and each[first]]
            if done:
                found.setdefault(name, {})[setting] = _told(study, done) | {"less": _less(both)}
    return found


def _told(study: Study, done: list[Record]) -> dict[str, Any]:
    values = {name: [{**each, **each["late"]}.get(name) for each in done] for name in study.shows}
    shown = {name: _mean([each for each in found if each is not None]) for name, found in values.items()}
    told = {"seeds": len(done), "steps": _mean([each["steps"] for each in done]), "shown": shown}
    return told | rates([each["outcomes"] for each in done])


def _less(both: list[tuple[Record, Record]]) -> dict[str, Any]:
    """Of pairs of a setting and the first one."""
    if not both:
        return {}
    ours, firsts = ([each["outcomes"] for each in side] for side in zip(*both, strict=True))
    return {name: difference(ours, firsts, SETS[name]) for name in RATES if any(map(SETS[name], ours[0]))}


def draw(found: dict[str, Any], path: Path) -> None:
    """A panel a study: the rate of each setting, with its interval."""
    drawn = figure(9, 2.2 * -(-len(found) // 3))
    panels = np.atleast_1d(drawn.subplots(-(-len(found) // 3), min(3, len(found)), squeeze=False)).ravel()
    for axes in panels[len(found) :]:
        axes.remove()
    for axes, (name, settings) in zip(panels, found.items(), strict=False):
        for place, told in enumerate(settings.values()):
            low, high = told["ladder"]["interval"]
            axes.plot([place, place], [100 * low, 100 * high], color="#2f6fed", linewidth=2)
            axes.plot(place, 100 * told["ladder"]["rate"], "o", color="#2f6fed", markersize=5)
        axes.set_xticks(range(len(settings)), settings)
        axes.set(title=name, xlim=(-0.5, len(settings) - 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    drawn.savefig(path)


def table(found: dict[str, Any]) -> Iterable[str]:
    """For people."""
    for name, settings in found.items():
        yield f"{name}: {STUDIES[name].question}"
        for setting, told in settings.items():
            rate = "  ".join(f"{each} {100 * told[each]['rate']:.1f}" for each in RATES if each in told)
            less = "  ".join(f"{each} {_points(one)}" for each, one in told["less"].items())
            shown = "  ".join(f"{each} {value:.3g}" for each, value in told["shown"].items() if value is not None)
            yield f"  {setting:12} {rate}  less the first: {less}  {shown}  ({told['seeds']} seeds)"


def _points(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{100 * found['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=4.0, help="of training")
    parser.add_argument("--start", type=Path, help="a checkpoint to begin with, in place of the recipe's")
    parser.add_argument("--per-rung", type=int, default=24, help="tasks of each rung and split")
    parser.add_argument("--out", type=Path, default=Path("runs/science"))
    parser.add_argument("--report", action="store_true", help="figures of what is there; train nothing")
    options = parser.parse_args()
    out, start = options.out.resolve(), options.start and options.start.resolve()
    for seed in [] if options.report else options.seeds:
        wanted = {
            made.name: made for name in options.studies or STUDIES for made in runs_of(STUDIES[name], seed).values()
        }
        for name, made in wanted.items():
            path = out / "records" / f"{name}.json"
            if not path.exists():
                done = play(made, out / "runs" / name, options.minutes, start, options.per_rung)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, (json.dumps(done) + "\n").encode())
                solved = "".join(done["outcomes"].values())
                print(f"{name}: {solved.count('1')} of {len(solved)} solved", flush=True)
    found = report(out)
    print("\n".join(table(found)))
    if found:
        draw(found, out / "science.svg")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

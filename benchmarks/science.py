"""What each switch is worth, one study at a time: the figures of docs/science.md.

    python benchmarks/science.py STUDY... [--seeds 0 1 2] [--minutes 4] [--start MODEL] [--out runs/science]
    python benchmarks/science.py --report

A study is a question and a few settings that differ in what is asked, and in nothing else. Each setting trains from the
same checkpoint for the same minutes (`--start`, by default the shipped model), at every seed, one after the other; its
last checkpoint plays development tasks that no training has. Solved tasks of all seeds make a rate with its interval
(the bootstrap of `arms/figures.py`); what else a study looks at, such as turns or samples a second, is the mean over
the last quarter of the steps. Trails have a recipe and a start of their own.

What is done is in OUT/STUDY/SETTING-SEED/result.json and not done again. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms.figures import SETS, rates
from arms.records import development_tasks, outcomes_of
from arms.training import QUIET, late_steps, run
from playing import RECIPE, recipe, solved_tasks

from etude.bench.html import figure
from etude.durable import write_whole
from etude.tasks.families import family

FIRST = 20_000
"""Number of the first task that is played: neither the arms' development tasks nor a run's evaluation have it."""
TRAILS = RECIPE.parent / "longhorizon.toml"


@dataclass(frozen=True)
class Study:
    question: str
    settings: dict[str, tuple[str, ...]]
    """Name → overrides of the recipe; the first is the recipe's own."""
    shows: tuple[str, ...] = ("samples_per_s", "mean_age")
    """Figures of steps beside the rate."""
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
        "What does the cap on importance weights do where the sampler lags?",
        {"2": (), "1": ("trainer.loss.importance_cap=1.0",), "none": ("trainer.loss.importance_cap=inf",)},
        ("divergence", "entropy"),
        common=("groups.max_staleness=8",),
    ),
    "slow-tools": Study(
        "Where every call takes a while and turns have a price, does it learn to read at once?",
        {"price": (), "no price": ("rewards.effort.enabled=false",)},
        ("parallel_share", "turns"),
        common=("harness.delay=[0.2, 1.0]",),
    ),
    "feedback": Study(
        "Are hints on the message that went wrong worth their time?",
        {"off": (), "on": ("trainer.credit.feedback={weight=0.1}",)},
        ("samples_per_s", "malformed_calls"),
    ),
    "credit": Study(
        "On trails: the whole trajectory's reward for each segment, or each segment against its like?",
        {"trajectory": (), "segment": ('trainer.credit.baseline="segment"',)},
        ("turns", "sampled_tokens"),
        TRAILS,
    ),
}


@dataclass(frozen=True)
class Place:
    study: str
    setting: str
    seed: int
    out: Path

    @property
    def directory(self) -> Path:
        return self.out / self.study / f"{self.setting.replace(' ', '-')}-{self.seed}"

    @property
    def result(self) -> Path:
        return self.directory / "result.json"


def play(place: Place, minutes: float, start: Path | None, per_rung: int) -> dict[str, Any]:
    """Train one setting at one seed, and have its last checkpoint play."""
    study = STUDIES[place.study]
    sets = [*QUIET, f"seed={place.seed}", f"rollouts.max_minutes={minutes}", *study.common]
    sets += [f"model.path={json.dumps(str(start))}"] if start is not None else []
    training = run(study.recipe, place.directory, [*sets, *study.settings[place.setting]])
    late = late_steps(place.directory)
    shown = {name: _mean([line[name] for line in late if name in line]) for name in study.shows}
    config = recipe(study.common, study.recipe)
    tasks = _tasks(study, config.rollouts.family, config.rollouts.rungs, per_rung)
    torch.set_num_threads(1)
    solved = solved_tasks(place.directory / "model", config, tasks, "science")
    kept = {"steps": training["steps"], "rollouts": training["rollouts"], "cpu_s": training["cpu_s"]}
    return {
        **kept,
        "shown": shown | {"samples_per_s": training["samples_per_s"]},
        "outcomes": outcomes_of(tasks, solved),
    }


def _tasks(study: Study, name: str, rungs: Sequence[int], per_rung: int) -> list[Any]:
    if study.recipe == RECIPE:
        return development_tasks(FIRST, per_rung, real=False)
    return [family(name).task(rung, "eval", FIRST + number) for number in range(4 * per_rung) for rung in rungs]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def report(out: Path) -> dict[str, Any]:
    """Of all that is there, by study and setting."""
    found: dict[str, Any] = {}
    for name, study in STUDIES.items():
        for setting in study.settings:
            places = sorted((out / name).glob(f"{setting.replace(' ', '-')}-*/result.json"))
            done = [json.loads(path.read_text()) for path in places]
            if done:
                shown = {each: _mean([one["shown"][each] for one in done]) for each in done[0]["shown"]}
                told = {"seeds": len(done), "steps": _mean([one["steps"] for one in done]), "shown": shown}
                found.setdefault(name, {})[setting] = told | rates([one["outcomes"] for one in done])
    return found


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
    for name in [] if options.report else options.studies:
        for seed in options.seeds:
            for setting in STUDIES[name].settings:
                place = Place(name, setting, seed, out)
                if not place.result.exists():
                    done = play(place, options.minutes, start, options.per_rung)
                    write_whole(place.result, (json.dumps(done) + "\n").encode())
                    solved = "".join(done["outcomes"].values())
                    print(f"{name} {setting} {seed}: {solved.count('1')} of {len(solved)} solved", flush=True)
    found = report(out)
    for name, settings in found.items():
        print(f"{name}: {STUDIES[name].question}")
        for setting, told in settings.items():
            of = "  ".join(f"{each} {100 * told[each]['rate']:.1f}" for each in SETS if each in told)
            shown = "  ".join(f"{each} {value:.3g}" for each, value in told["shown"].items() if value is not None)
            print(f"  {setting:12} {of}  {shown}")
    if found:
        draw(found, out / "science.svg")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

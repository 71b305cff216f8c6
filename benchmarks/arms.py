"""What reinforcement learning is worth beside its rivals: from one base, at equal CPU time, on tasks new to all.

    python benchmarks/arms.py [--seeds 0 1 2] [--minutes 6] [--arms rl sft ...] [--per-rung 100] [--out runs/arms]
    python benchmarks/arms.py --report

T is the CPU time that `rl` takes at the same seed, all processes together. The arms:

    rl          recipes/quickstart.toml for --minutes, without its control and with next to no evaluation
    sft         fine-tuned on the fair expert's sessions (`etude/rollouts/control.py`), for T/2. That expert knows no
                more than a player could. Recording counts
    sft_long    the same for T
    sft_rl      reinforcement learning from the checkpoint of `sft`, for half the minutes: T in all
    rft         rejection-sampling fine-tuning for T: the policy's own solved sessions (`arms/rejection.py`)
    sft_masked  `sft_long` without the messages whose edit the check refuted, where it is asked for by --arms

Rivals get the care that reinforcement learning gets. All choices are made on development tasks, which are the default,
with other seeds than are reported, and are overrides: `--set PREFIX.KEY=VALUE`, for the recipe of `all` arms, `rl` and
`sft_rl`, and for `sft` (`FinetuneConfig`, which `rft` has too) and `rft` (`RejectionConfig`). By default `rl` has
the recipe's values, and so has `sft_rl` but for two (`arms.training.FROM_SFT`). Fine-tuning has those of
the quickstart's control; at most 30% of its time is recording, about an epoch. The values of `rft` are a first guess,
and have not been tuned.

Each arm's last checkpoint plays every task once at temperature 1, with --greedy at 0 too, by the same draws as every
other's. Tasks are the ladder's splits `eval` and `heldout` from number --first on, --per-rung of each, and the
real-code set; with --exam those of `etude/tasks/exam.py`, which is for the end and for no choice. Checkpoints on the
way, at quarters of the time or after rounds of `rft`, play a small set of their own for the curves. No evaluation
counts as an arm's time.

OUT/records has one small file an arm and seed, written when it is done. What is there is not done again, so a second
call goes on; records of several machines are copied into one directory, and --report makes the figures and curves.svg
of all that is there. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from arms import records
from arms.figures import COLOURS, draw, report, table
from arms.records import Outcomes, Point, Record, Settings
from arms.training import ARMS, ROOT, Checkpoint, Plan, Trained, commit, train
from playing import solved_tasks

from etude.records import Task

PREFIXES = ("all", "rl", "sft_rl", "sft", "rft")


@dataclass(frozen=True)
class Evaluation:
    """What every checkpoint plays: any list of tasks, and a small one for curves."""

    tasks: Sequence[Task]
    curve: Sequence[Task]
    greedy: bool

    def outcomes(self, plan: Plan, model: Path, temperature: float) -> Outcomes:
        solved = solved_tasks(model, plan.config(0), self.tasks, "arms", temperature)
        return records.outcomes_of(self.tasks, solved)

    def point(self, plan: Plan, made: Checkpoint) -> Point:
        solved = solved_tasks(made.model, plan.config(0), self.curve, "curve")
        return Point(made.cpu_s, made.samples, sum(solved.values()), len(solved))


def record(plan: Plan, evaluation: Evaluation, settings: Settings, arm: str, seed: int, trained: Trained) -> Record:
    """Everything that is kept of an arm."""
    torch.set_num_threads(1)
    curve = tuple(evaluation.point(plan, made) for made in (*trained.way, trained.last)) if evaluation.curve else ()
    return Record(
        arm=arm,
        seed=seed,
        settings=settings,
        cpu_s=trained.last.cpu_s,
        samples=trained.last.samples,
        outcomes=evaluation.outcomes(plan, trained.last.model, 1.0),
        greedy=evaluation.outcomes(plan, trained.last.model, 0.0) if evaluation.greedy else None,
        curve=curve,
        notes=trained.notes,
        commit=commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def compare(plan: Plan, evaluation: Evaluation, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Train and evaluate whatever has no record yet; the base first, once, as if it were an arm."""
    settings = settings_of(plan, evaluation)
    base = Trained(Checkpoint(plan.base, 0.0, 0), (), {})
    for arm, seed in [("base", 0), *((arm, seed) for seed in seeds for arm in ARMS if arm in arms)]:
        path = records.path_of(plan.out, arm, seed)
        if path.exists():
            if records.read(path).settings != settings:
                raise SystemExit(f"{path}: was made with other settings; give another --out, or remove it")
            continue
        began = time.monotonic()
        trained = base if arm == "base" else train(plan, arm, seed)
        made = record(plan, evaluation, settings, arm, seed, trained)
        records.write(plan.out, made)
        everything = "".join(made.outcomes.values())
        solved = f"{everything.count('1')} of {len(everything)} tasks solved"
        told = f"{made.cpu_s:.0f} CPU s, {made.samples} samples, {solved}"
        print(f"{arm} {seed}: {told} ({time.monotonic() - began:.0f} s)", flush=True)


def settings_of(plan: Plan, evaluation: Evaluation) -> Settings:
    weights = hashlib.sha256()
    for path in sorted(plan.base.glob("*.safetensors")):
        weights.update(path.read_bytes())
    tasks = records.digest([*evaluation.tasks, *evaluation.curve]) + ("+greedy" if evaluation.greedy else "")
    return Settings(weights.hexdigest()[:16], tasks, plan.minutes, plan.cpu_seconds, plan.overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/arms"))
    parser.add_argument("--base", type=Path, default=ROOT / "models" / "etude-tiny")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[arm for arm in ARMS if arm != "sft_masked"])
    parser.add_argument("--minutes", type=float, default=6.0, help="of reinforcement learning")
    parser.add_argument("--cpu-seconds", type=float, help="T of the other arms, in place of what rl takes")
    parser.add_argument("--per-rung", type=int, default=100, help="tasks of each rung and split")
    parser.add_argument("--first", type=int, default=1000, help="number of the first task")
    parser.add_argument("--exam", action="store_true", help="evaluate on the exam instead: when all choices are made")
    parser.add_argument("--no-real", action="store_true", help="leave the real-code set out")
    parser.add_argument("--curve-per-rung", type=int, default=16, help="tasks of each rung for curves; 0: no curves")
    parser.add_argument("--greedy", action="store_true", help="evaluate at temperature 0 too")
    parser.add_argument("--set", action="append", default=[], metavar="PREFIX.KEY=VALUE")
    parser.add_argument("--report", action="store_true", help="figures of what is there; train nothing")
    options = parser.parse_args()
    if wrong := [each for each in options.set if each.partition(".")[0] not in PREFIXES]:
        parser.error(f"--set {wrong[0]}: begins with none of {', '.join(f'{each}.' for each in PREFIXES)}")
    out = options.out.resolve()
    if not options.report:
        base = options.base.resolve()
        if not (base / "config.json").exists():
            parser.error(f"{base}: no model there")
        plan = Plan(out, base, options.minutes, options.cpu_seconds, tuple(sorted(options.set)))
        real = not options.no_real
        tasks = (
            records.final_tasks(real)
            if options.exam
            else records.development_tasks(options.first, options.per_rung, real)
        )
        evaluation = Evaluation(tasks, records.curve_tasks(options.curve_per_rung), options.greedy)
        compare(plan, evaluation, options.arms, options.seeds)
    found = records.read_all(out)
    figures = report(found)
    print(table(figures, COLOURS))
    if any(each.curve for each in found):
        draw(found, out / "curves.svg")
        print(f"curves: {os.path.relpath(out / 'curves.svg')}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

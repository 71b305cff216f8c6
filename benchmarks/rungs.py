"""Whether the rungs of the ladder get harder one by one, for every policy given: on more tasks than a run evaluates.

    python benchmarks/rungs.py MODEL... [--per-rung 300] [--first 1000]

A MODEL is a checkpoint directory: the base, or what a run leaves in `model/` and `control/`. Each plays the tasks of
the `eval` split from number `--first` on, once, through the harness, sandboxes and verifier of the quickstart's recipe.
A run's own evaluation takes the tasks from 0 on; with 64 a rung its rates are uncertain by six points, and the rungs
are as far apart. The last line is one JSON object: for each model its rates by rung, and whether every rung's is below
the one before.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from playing import recipe, solved_tasks

from etude.rewards.rates import wilson
from etude.tasks.ladder import RUNGS, ladder_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--per-rung", type=int, default=300)
    parser.add_argument("--first", type=int, default=1000, help="number of the first task")
    options = parser.parse_args()
    config, numbers = recipe(), range(options.first, options.first + options.per_rung)
    tasks = [ladder_task(rung, "eval", number) for number in numbers for rung in RUNGS]
    figures: dict[str, Any] = {}
    for model in options.models:
        if not (model / "config.json").exists():
            raise SystemExit(f"{model}: no model there")
        solved = solved_tasks(model, config, tasks, "rungs")
        won = {rung: sum(solved[task.id] for task in tasks if task.provenance["rung"] == rung) for rung in RUNGS}
        rates = [won[rung] / options.per_rung for rung in RUNGS]
        bounds = [wilson(won[rung], options.per_rung) for rung in RUNGS]
        line = "  ".join(f"{r:.1%} ({low:.1%} to {high:.1%})" for r, (low, high) in zip(rates, bounds, strict=True))
        print(f"{model}  {line}", flush=True)
        figures[str(model)] = {"rates": rates, "falling": rates == sorted(set(rates), reverse=True)}
    print(json.dumps({"per_rung": options.per_rung, **figures}))


if __name__ == "__main__":
    main()

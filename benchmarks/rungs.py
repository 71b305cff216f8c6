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
import asyncio
import json
import random
from pathlib import Path
from typing import Any

from etude.config import load_recipe
from etude.engine.torch_engine import TorchEngine
from etude.environments.backends import open_backend
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import load_checkpoint
from etude.records import InfraFailed, solved
from etude.rewards.rates import wilson
from etude.rollouts.config import RunConfig
from etude.rollouts.session import RolloutRequest, play
from etude.tasks.ladder import RUNGS, ladder_task

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "quickstart.toml"


async def solved_by_rung(model: Path, config: RunConfig, tasks: range) -> dict[int, int]:
    """How many tasks of each rung the model solves."""
    decoder, tokenizer = load_checkpoint(model)
    engine, chat = TorchEngine(decoder, config.engine), ChatRenderer(tokenizer)
    backend = open_backend(config.environment)
    places = asyncio.Semaphore(config.rollouts.concurrency)

    async def one(rung: int, number: int) -> bool:
        task = ladder_task(rung, "eval", number)
        order = RolloutRequest(task.id, "rungs", task, random.Random(f"rungs {task.id}").getrandbits(40))
        async with places:
            outcome = (await play(order, config, backend, engine, chat, lambda *_: None)).outcome
        if isinstance(outcome, InfraFailed):
            raise SystemExit(f"{task.id}: {outcome.what}; nothing can be said of rung {rung}")
        return solved(outcome)

    try:
        played = [(rung, one(rung, number)) for number in tasks for rung in RUNGS]
        results = await asyncio.gather(*(rollout for _, rollout in played))
    finally:
        engine.close()
        await backend.close()
    return {rung: sum(won for (each, _), won in zip(played, results, strict=True) if each == rung) for rung in RUNGS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--per-rung", type=int, default=300)
    parser.add_argument("--first", type=int, default=1000, help="number of the first task")
    options = parser.parse_args()
    config = load_recipe(RECIPE, RunConfig)
    figures: dict[str, Any] = {}
    for model in options.models:
        if not (model / "config.json").exists():
            raise SystemExit(f"{model}: no model there")
        won = asyncio.run(solved_by_rung(model, config, range(options.first, options.first + options.per_rung)))
        rates = [won[rung] / options.per_rung for rung in RUNGS]
        bounds = [wilson(won[rung], options.per_rung) for rung in RUNGS]
        line = "  ".join(f"{r:.1%} ({low:.1%} to {high:.1%})" for r, (low, high) in zip(rates, bounds, strict=True))
        print(f"{model}  {line}", flush=True)
        figures[str(model)] = {"rates": rates, "falling": rates == sorted(set(rates), reverse=True)}
    print(json.dumps({"per_rung": options.per_rung, **figures}))


if __name__ == "__main__":
    main()

"""`etude plan RECIPE`: what a recipe would do on these machines, and what would do more."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a TOML recipe, for example recipes/quickstart.toml")
    parser.add_argument(
        "--from", type=Path, metavar="RUN", help="learn the rates from this run's directory, and train nothing"
    )
    parser.add_argument(
        "--probe", type=float, default=60.0, metavar="SECONDS",
        help="without --from the recipe trains for %(default)g s to learn them; so long instead",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the simulation")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.cli.stopping import stoppable

    with stoppable() as running:
        return _run(options, running)


def _run(options: argparse.Namespace, running: Callable[[Coroutine[Any, Any, Any]], Any]) -> int:
    from etude.config import load_recipe
    from etude.rollouts.config import RunConfig
    from etude.rollouts.plan.planner import lines_of, plan_of
    from etude.rollouts.plan.rates import read_rates

    config = load_recipe(options.recipe, RunConfig, options.set)
    directory = getattr(options, "from")
    if directory is not None:
        rates = read_rates(directory)
    else:
        from etude.rollouts.plan.planner import probed

        rates = running(probed(config, options.probe))
    plan = plan_of(config, rates, options.seed)
    if options.json:
        say(json.dumps(plan.as_json()))
    else:
        say("\n".join(lines_of(plan)))
    return 0

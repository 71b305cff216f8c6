"""`etude train RECIPE`: one run from its recipe to its report. The last line is one JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a TOML recipe, for example recipes/quickstart.toml")
    parser.add_argument("--out", type=Path, help="run directory (default: runs/NAME-SEED)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the final JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.rollouts.config import RunConfig
    from etude.rollouts.run import Run

    config = load_recipe(options.recipe, RunConfig, options.set)
    directory = options.out or Path("runs") / f"{config.name}-{config.seed}"
    summary = asyncio.run(Run(config, directory, options.resume, quiet=options.json).execute())
    print(json.dumps(summary, default=float))
    return 0

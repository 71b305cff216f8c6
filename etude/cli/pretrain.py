"""`etude pretrain RECIPE`: make a base model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/base.toml"))
    parser.add_argument(
        "--out", type=Path, default=Path("runs/base"), help="work directory; the model goes to OUT/model"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the final JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.trainer.base_model import BaseConfig, make_base_model

    config = load_recipe(options.recipe, BaseConfig, options.set)
    print(json.dumps(make_base_model(config, options.out), default=float))
    return 0

"""`etude pretrain RECIPE`: make a base model, one that a recipe begins from, or an embedder; or go on with a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/base.toml"))
    parser.add_argument("--out", type=Path, help="work directory, runs/RECIPE by default; the model goes to OUT/model")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the final JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.trainer.base_model import BaseConfig, make_base_model
    from etude.trainer.continued import ContinuedConfig, make_continued
    from etude.trainer.embedder.config import EmbedderConfig
    from etude.trainer.embedder.making import make_embedder
    from etude.trainer.warm_start import WarmStartConfig, make_warm_start

    kind, out = _kind(options.recipe), options.out or Path("runs", options.recipe.stem)
    made: Mapping[str, object]
    if kind == "continued":
        made = make_continued(load_recipe(options.recipe, ContinuedConfig, options.set), out)
    elif kind == "warm_start":
        start = load_recipe(options.recipe, WarmStartConfig, options.set)
        made = make_warm_start(start, out)
    elif kind == "embedder":
        made = make_embedder(load_recipe(options.recipe, EmbedderConfig, options.set), out)
    else:
        made = make_base_model(load_recipe(options.recipe, BaseConfig, options.set), out)
    say(json.dumps(made, default=float))
    return 0


def _kind(recipe: Path) -> str:
    """What a recipe makes; whatever cannot be read is told of by who reads it in earnest."""
    from etude.config import read_toml
    from etude.errors import ConfigError

    try:
        return str(read_toml(recipe).get("kind", "base"))
    except (OSError, ConfigError):
        return "base"

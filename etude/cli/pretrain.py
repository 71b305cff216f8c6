"""`etude pretrain RECIPE`: make a base model, one that a recipe begins from, or an embedder; or go on with a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, nargs="?", default=Path("recipes/base.toml"))
    parser.add_argument("--out", type=Path, help="work directory, runs/RECIPE by default; the model goes to OUT/model")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the final JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.cli.stopping import stoppable
    from etude.config import load_recipe
    from etude.made_by import alone
    from etude.trainer.base_model import BaseConfig, make_base_model
    from etude.trainer.continued import ContinuedConfig, make_continued
    from etude.trainer.embedder.config import EmbedderConfig
    from etude.trainer.embedder.making import make_embedder
    from etude.trainer.warm_start import WarmStartConfig, make_warm_start

    kinds: dict[str, tuple[type[Any], Callable[[Any, Path], Mapping[str, object]]]] = {
        "continued": (ContinuedConfig, make_continued),
        "warm_start": (WarmStartConfig, make_warm_start),
        "embedder": (EmbedderConfig, make_embedder),
    }
    schema, make = kinds.get(_kind(options.recipe), (BaseConfig, make_base_model))
    out = options.out or Path("runs", options.recipe.stem)
    config = load_recipe(options.recipe, schema, options.set)
    with stoppable(f"what was saved stays in {out}; the same command goes on from there"), alone(out):
        made = make(config, out)
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

"""`etude config RECIPE`: the whole recipe as it is in effect, as TOML that loads again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a TOML recipe of `etude train`")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the source of every value")


def run(options: argparse.Namespace) -> int:
    from etude.explain import Explained, plain
    from etude.rollouts.config import RunConfig

    explained = Explained(options.recipe, RunConfig, options.set)
    if not options.json:
        say(explained.toml().rstrip("\n"))
        return 0
    values = {
        each.key.path: {
            "value": plain(each.value), "default": plain(each.default), "differs": each.differs, "source": each.source,
        }
        for each in explained.values()
    }  # fmt: skip
    say(json.dumps({"recipe": str(options.recipe), "values": values}))
    return 0

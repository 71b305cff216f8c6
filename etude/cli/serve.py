"""`etude serve MODEL`: an OpenAI-compatible server of one checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="a checkpoint directory")
    parser.add_argument("--config", type=Path, help="a TOML file of the server's config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    parser.add_argument("--json", action="store_true", help="say where it is as a JSON line")


def run(options: argparse.Namespace) -> int:
    import asyncio

    from etude.config import load_recipe
    from etude.engine.server.app import ServeConfig, serve

    config = load_recipe(options.config, ServeConfig, options.set)
    config.deadlines.apply()

    def ready(url: str) -> None:
        said = {"url": url, "model": config.name or options.model.resolve().name, "token_file": str(config.token_path)}
        text = (
            json.dumps(said) if options.json else f"serving {said['model']} at {url}/v1; token in {config.token_path}"
        )
        say(text)

    asyncio.run(serve(options.model, config, ready))
    return 0

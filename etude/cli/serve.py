"""`etude serve MODEL`: an OpenAI-compatible server of one checkpoint; and how every server's command runs it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="a checkpoint directory")
    parser.add_argument("--config", type=Path, help="a TOML file of the server's config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    parser.add_argument("--json", action="store_true", help="say where it is as a JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.engine.server.app import ServeConfig, serve
    from etude.models.shipped import model_at

    config = load_recipe(options.config, ServeConfig, options.set)
    config.deadlines.apply()
    name = config.name or options.model.resolve().name
    serving = partial(serve, model_at(options.model), config)
    return run_server(serving, config.token_path, options.json, f"serving {name}", "/v1", model=name)


def run_server(
    serving: Callable[[Callable[..., None]], Coroutine[Any, Any, None]],
    token: Path,
    as_json: bool,
    what: str,
    below: str = "",
    **about: str,
) -> int:
    """Serve until SIGTERM or Ctrl-C. Once requests are answered, say where: `what` at the URL, or `about` as JSON,
    and then the server's remarks.
    """
    import asyncio

    def ready(url: str, remarks: Sequence[str] = ()) -> None:
        said = {"url": url, **about, "token_file": str(token), **({"remarks": remarks} if remarks else {})}
        say(json.dumps(said) if as_json else "\n".join((f"{what} at {url}{below}; token in {token}", *remarks)))

    asyncio.run(serving(ready))
    return 0

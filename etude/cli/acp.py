"""`etude acp`: the agent in an editor, by the Agent Client Protocol on stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="agent.toml (default: ~/.config/etude/agent.toml, if it is there)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    parser.add_argument("--endpoint", metavar="URL", help="the same as --set endpoint.url=URL")
    parser.add_argument("--model", metavar="NAME", help="the same as --set endpoint.model=NAME")


def run(options: argparse.Namespace) -> int:
    from etude.harness.store import SessionStore
    from etude.product.acp.face import serve
    from etude.product.config import load_agent

    given = [("endpoint.url", options.endpoint), ("endpoint.model", options.model)]
    overrides = [*(f"{key}={json.dumps(value)}" for key, value in given if value), *options.set]

    if sys.stdin.isatty():
        say("etude acp is for an editor: set it up to start the command `etude acp`. Ctrl-D ends it.", sys.stderr)
    asyncio.run(serve(lambda: load_agent(options.config, overrides), SessionStore()))
    return 0

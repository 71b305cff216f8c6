"""`etude init`: find a model for the agent, try it, and write agent.toml."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Set up the agent: find an endpoint and a model, try them with one short message, and write agent.toml. In a "
        "terminal it asks for what is missing; elsewhere it takes what is given, or the only model there is."
    )
    parser.add_argument("--endpoint", metavar="URL", default="", help="of an OpenAI-compatible server, up to /v1")
    parser.add_argument("--model", metavar="NAME", default="", help="the model's name there")
    parser.add_argument("--key-env", metavar="VARIABLE", default="", help="the variable that holds the key")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="write it there (default: ~/.config/etude/agent.toml)"
    )
    parser.add_argument("--json", action="store_true", help="ask nothing, and print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.product.config import config_file
    from etude.product.setup.ask import Given, set_up
    from etude.product.terminal.screen import Screen, usable

    there = usable(sys.stdin) and usable(sys.stdout) and not options.json
    given = Given(options.endpoint, options.model, options.key_env)
    done = set_up(given, options.config or config_file(), Screen() if there else None)
    config = done.trial.config
    if options.json:
        about = {"url": config.url, "model": config.model, "key_env": config.key_env, "calls": config.calls}
        before = None if done.before is None else str(done.before)
        say(json.dumps({"file": str(done.file), "before": before, **about, "calls_tools": done.trial.calls}))
        return 0
    if not there:
        say(done.trial.said + (f"; {done.remark}" if done.remark else ""))
    say(f"wrote {done.file}" + (f"; what was there is {done.before}" if done.before else ""))
    say("next: `etude agent`, in the directory that it is to work in; `etude doctor` looks at the whole machine")
    return 0

"""`etude agent [PROMPT]`: a model works on your repository, or on a generated one while you watch."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="what to do; - reads it from stdin")
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON line")
    product = parser.add_argument_group("in your directory, with any OpenAI-compatible model")
    product.add_argument(
        "-p", "--print", action="store_true", help="do it, print the answer, and exit with 0, 1, 42 or 53"
    )
    product.add_argument("--output-format", choices=("text", "json", "stream-json"), default="text")
    product.add_argument("--config", type=Path, help="agent.toml (default: ~/.config/etude/agent.toml, if it is there)")
    product.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    product.add_argument("--endpoint", metavar="URL", help="the same as --set endpoint.url=URL")
    product.add_argument(
        "--allow", action="append", default=[], metavar="RULE", help='permit this now: "run(pytest *)"'
    )
    past = product.add_mutually_exclusive_group()
    past.add_argument(
        "-c", "--continue", dest="latest", action="store_true", help="the newest session of this directory"
    )
    past.add_argument(
        "-r", "--resume", metavar="ID", help="this session; without a prompt, from where it was cut short"
    )
    past.add_argument("--fork", metavar="ID", help="a new session with this one's past")
    product.add_argument("--list", action="store_true", help="the sessions of this directory, the newest first")
    watch = parser.add_argument_group("with a checkpoint, in a sandbox")
    watch.add_argument("--model", help="checkpoint directory (default: the newest trained one); with --print, its name")
    watch.add_argument("--task", default="3:0", metavar="RUNG:SEED", help="a generated repository (default: 3:0)")
    watch.add_argument("--dir", type=Path, help="work on a copy of this directory instead; with --print, in it")
    watch.add_argument("--temperature", type=float, default=1.0)
    watch.add_argument("--seed", type=int, default=0)
    watch.add_argument(
        "--expert-format", choices=("plain", "mxfp8", "nvfp4"), default="plain", help="as the model was trained with"
    )


def run(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    return _print(options) if options.print else _watch(options)


def _print(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.errors import ConfigError
    from etude.harness.store import SessionStore
    from etude.product import headless
    from etude.product.config import AgentConfig, config_file

    directory, store = (options.dir or Path.cwd()).resolve(), SessionStore()
    file = options.config or (config_file() if config_file().exists() else None)
    given = [("endpoint.url", options.endpoint), ("endpoint.model", options.model)]
    overrides = [*(f"{key}={json.dumps(value)}" for key, value in given if value), *options.set]
    session = options.resume
    if options.latest:
        found = store.sessions(directory)
        if not found:
            raise ConfigError(f"there is no session of {directory} to go on with; leave out --continue")
        session = found[0].id
    elif options.fork:
        session = asyncio.run(store.fork(options.fork))
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    if prompt is None and session is None:
        raise ConfigError("--print needs a PROMPT, or - to read it from stdin")
    output = "json" if options.json else options.output_format
    asked = headless.Asked(prompt, directory, output, session, options.allow)
    return asyncio.run(headless.run(load_recipe(file, AgentConfig, overrides), asked, store))


def _list(options: argparse.Namespace) -> int:
    from etude.harness.store import SessionStore

    listed = SessionStore().sessions((options.dir or Path.cwd()).resolve())
    for each in listed:
        if options.json:
            print(json.dumps({"id": each.id, "last_active": each.last_active.isoformat(), "task": each.task}))
        else:
            print(f"{each.id}  {each.last_active:%Y-%m-%d %H:%M}  {each.task[:80]}")
    return 0


def _watch(options: argparse.Namespace) -> int:
    from etude.rollouts.agent import AgentRun, find_model, task_for

    task = task_for(options.task, options.dir, options.prompt)
    model = find_model(Path(options.model) if options.model else None)
    agent = AgentRun(model, task, options.temperature, options.seed, options.json, options.expert_format)
    result = asyncio.run(agent.execute())
    if options.json:
        print(json.dumps(result))
    return 0 if result["solved"] in (True, None) else 1

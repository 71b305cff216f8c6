"""`etude sessions`: a server of them over HTTP, and one as Harbor's trajectory format."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from etude.cli.serve import run_server
from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="serve sessions over HTTP until SIGTERM")
    serve.add_argument("config", nargs="?", type=Path, help="a TOML file of the server's config")
    serve.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    serve.add_argument("--agent", type=Path, metavar="FILE", help="agent.toml (default: as `etude agent` takes it)")
    serve.add_argument("--agent-set", action="append", default=[], metavar="KEY=VALUE", help="override one key of that")
    serve.add_argument("--json", action="store_true", help="say where it is as a JSON line")
    export = actions.add_parser("export", help="write a session as a trajectory in ATIF v1.8")
    export.add_argument("session", metavar="SESSION", help="its id; `etude agent --list` shows those there are")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there (default: stdout)")
    export.add_argument("--json", action="store_true", help="print one JSON line about it; needs --output")


def run(options: argparse.Namespace) -> int:
    return {"serve": _serve, "export": _export}[options.action](options)


def _serve(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.product.config import load_agent
    from etude.product.sessions.app import serve
    from etude.product.sessions.config import SessionsConfig

    config = load_recipe(options.config, SessionsConfig, options.set)
    agent = load_agent(options.agent, options.agent_set)
    return run_server(partial(serve, config, agent), config.token_path, options.json, "serving sessions")


def _write(output: Path, data: bytes) -> None:
    """What an earlier export left stays until the new one is whole. A pipe or a device is written to as it is."""
    from etude.durable import write_whole

    if output.exists() and not output.is_file():
        output.write_bytes(data)
    else:
        write_whole(output.resolve(), data)


def _export(options: argparse.Namespace) -> int:
    from etude import __version__
    from etude.errors import ConfigError
    from etude.harness.atif import encoded, trajectory
    from etude.harness.store import SessionStore

    if options.json and options.output is None:
        raise ConfigError("--json: stdout is the trajectory's; name a file with --output")
    whole = trajectory(SessionStore().events(options.session), __version__)
    if options.output is None:
        sys.stdout.buffer.write(encoded(whole))
        sys.stdout.flush()
        return 0
    try:
        _write(options.output, encoded(whole))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ConfigError(f"--output: {options.output} cannot be written: {error.strerror}") from None
    about = {"session_id": options.session, "file": str(options.output), **whole["final_metrics"]}
    say(json.dumps(about) if options.json else f"{options.output}: {about['total_steps']} steps")
    return 0

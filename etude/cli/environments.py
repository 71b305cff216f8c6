"""`etude environments`: a server of sandboxes, a burst of them through it, and what this machine can make."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from etude.cli.serve import run_server
from etude.errors import ConfigError
from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    doctor = actions.add_parser("doctor", help="start real sandboxes and say which backends work")
    doctor.add_argument("--backend", metavar="NAME", help="look at this one only")
    doctor.add_argument("--image", help="what the docker backend starts its sandbox on")
    doctor.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in the config of --backend")
    serve = actions.add_parser("serve", help="serve sandboxes over HTTP until SIGTERM")
    serve.add_argument("config", nargs="?", type=Path, help="a TOML file of the server's config")
    serve.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    burst = actions.add_parser("burst", help="ask a server for N sandboxes at once, run a command in each")
    burst.add_argument("count", type=int, metavar="N")
    burst.add_argument("--url", default="http://127.0.0.1:8460", help="the server (%(default)s)")
    burst.add_argument("--token-file", type=Path, help="its token, where it is not this user's own server")
    burst.add_argument("--exec", default="true", metavar="COMMAND", help="what each runs (%(default)s)")
    for action in (doctor, serve, burst):
        action.add_argument("--json", action="store_true", help="print JSON, one object a line")


def run(options: argparse.Namespace) -> int:
    return {"doctor": _doctor, "serve": _serve, "burst": _burst}[options.action](options)


def _doctor(options: argparse.Namespace) -> int:
    """0 where the backend asked for, or else the one that recipes use by default, is offered."""
    from etude.environments.doctor import survey

    if options.set and not options.backend:
        raise ConfigError("--set: say with --backend whose config it is")
    found = survey(options.backend, options.image, options.set)
    wanted = options.backend or "namespace"
    offered = [name for name, findings in found.items() if all(finding.ok for finding in findings)]
    if options.json:
        backends = {name: [asdict(finding) for finding in findings] for name, findings in found.items()}
        say(json.dumps({"offered": offered, "backends": backends}))
        return 0 if wanted in offered else 1
    for name, findings in found.items():
        say(f"{name}: {'offered' if name in offered else 'not offered'}")
        for finding in findings:
            say(f"  {'✓' if finding.ok else '✗'} {finding.subject}: {finding.detail}")
            if finding.remedy and not finding.ok:
                say(f"      {finding.remedy}")
    return 0 if wanted in offered else 1


def _serve(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.environments.server.app import ServerConfig, serve

    config = load_recipe(options.config, ServerConfig, options.set)
    config.deadlines.apply()
    return run_server(partial(serve, config), config.token_path, options.json, "serving sandboxes")


def _burst(options: argparse.Namespace) -> int:
    import asyncio

    from etude.environments.burst import burst
    from etude.environments.remote import RemoteConfig

    remote = RemoteConfig(url=options.url, token_file=options.token_file)
    figures = asyncio.run(burst(remote, options.count, options.exec))
    if not options.json:
        for name in ("create", "exec", "destroy"):
            shares = "  ".join(
                f"{share} {figures[f'{name}_ms_{share}']:.1f} ms" for share in ("p50", "p90", "p99", "max")
            )
            say(f"{name:8} {shares}")
    say(json.dumps(figures))
    return 0 if figures["failed"] == 0 else 1

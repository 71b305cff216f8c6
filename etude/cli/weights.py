"""`etude weights log|inspect|verify STORE`: the chain of versions in a store. `keygen PATH`: a key to sign it with.

`relay STORE`: a site's engines read the store through it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _action(actions, "log", "list the versions")
    inspect = _action(actions, "inspect", "look at one version and what changed in each tensor")
    inspect.add_argument("--version", type=int, help="which one (default: the newest)")
    _action(actions, "verify", "make every version again from the store, and check every hash and root")
    relay = actions.add_parser("relay", help="read the store for a whole site, each block once")
    relay.add_argument("store", help="the store's URL")
    relay.add_argument("--config", type=Path, help="a TOML file of the relay's config")
    relay.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    relay.add_argument("--json", action="store_true", help="say where it is as a JSON line")
    keygen = actions.add_parser("keygen", help="make a key pair for signed manifests")
    keygen.add_argument("path", type=Path, help="where the private key goes; the public one gets .pub appended")
    keygen.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.action == "relay":
        return _relay(options)
    report, text, status = _ACTIONS[options.action](options)
    print(json.dumps(report) if options.json else text)
    return status


def _action(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what)
    parser.add_argument("store", help="a store's URL or directory, for example runs/quickstart-0/weights")
    parser.add_argument(
        "--trust",
        type=Path,
        action="append",
        default=[],
        metavar="KEY",
        help="refuse what this public key did not sign",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _log(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.weights import inspect as look

    lines = look.log(*_opened(options))
    return [asdict(line) for line in lines], look.format_log(lines), 0


def _inspect(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.records import Version
    from etude.weights import inspect as look
    from etude.weights.subscriber import Subscriber

    store, keys = _opened(options)
    version = Subscriber(store).latest() if options.version is None else Version(options.version)
    detail = look.inspect(store, version, keys)
    return asdict(detail), look.format_inspect(detail), 0


def _verify(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.weights import inspect as look

    report = look.verify(*_opened(options))
    return asdict(report), look.format_verify(report), 0 if report.ok else 1


def _keygen(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.weights.signing import make_keys

    public = make_keys(options.path)
    text = f"{options.path}: publisher.signing_key, to be kept secret\n{public}: subscriber.trusted_keys"
    return {"private": str(options.path), "public": str(public)}, text, 0


def _relay(options: argparse.Namespace) -> int:
    import asyncio

    from etude.config import load_recipe
    from etude.weights.relay import RelayConfig, serve

    config = load_recipe(options.config, RelayConfig, options.set)

    def ready(url: str) -> None:
        said = {"url": url, "store": options.store, "token_file": str(config.token_file)}
        text = json.dumps(said) if options.json else f"relaying {options.store} at {url}; token in {config.token_file}"
        print(text, flush=True)

    asyncio.run(serve(options.store, config, ready))
    return 0


def _opened(options: argparse.Namespace) -> tuple[Any, Any]:
    from etude.weights.signing import load_keys
    from etude.weights.store import open_store

    return open_store(options.store), load_keys(trusted=options.trust)


_ACTIONS = {"log": _log, "inspect": _inspect, "verify": _verify, "keygen": _keygen}

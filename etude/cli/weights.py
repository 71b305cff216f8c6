"""`etude weights ACTION STORE`: the chain of versions in a store; what holds, takes back, signs and relays them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from etude.cli.serve import run_server
from etude.plain import say


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
    _action(actions, "pins", "list what holds versions against retention")
    for name, what in (("pin", "keep a version fetchable whatever its age"), ("unpin", "let a version go")):
        pin = _action(actions, name, what)
        pin.add_argument("--version", type=int, required=True)
        pin.add_argument("--name", required=True, help="who or what holds it, for example ab-7")
        if name == "pin":
            pin.add_argument("--hours", type=float, help="for so long (default: until it is let go)")
            pin.add_argument("--why", default="")
    for name, what in (
        ("rollback", "publish an earlier version's weights again, as the newest version"),
        ("rewind", "delete every version after one; no trainer may be publishing"),
    ):
        back = _action(actions, name, what)
        back.add_argument("--version", type=int, required=True, help="the version to go back to")
        back.add_argument("--key", type=Path, help="the private key of a signed chain")
    keygen = actions.add_parser("keygen", help="make a key pair for signed manifests")
    keygen.add_argument("path", type=Path, help="where the private key goes; the public one gets .pub appended")
    keygen.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.action == "relay":
        return _relay(options)
    report, text, status = _ACTIONS[options.action](options)
    say(json.dumps(report) if options.json else text)
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


def _pins(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.weights.inspect import format_pins

    pins = _open_pins(options).live()
    return [asdict(pin) for pin in pins], format_pins(pins), 0


def _pin(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.records import Version

    for_s = None if options.hours is None else 3600 * options.hours
    pin = _open_pins(options).set(Version(options.version), options.name, options.why, for_s)
    return asdict(pin), f"version {pin.version} is pinned as {pin.name}", 0


def _unpin(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.records import Version

    _open_pins(options).remove(Version(options.version), options.name)
    report = {"version": options.version, "name": options.name}
    return report, f"version {options.version} is not pinned as {options.name} any more", 0


def _rollback(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.records import Version

    result = _open_publisher(options).rollback(Version(options.version))
    text = f"version {result.version} has the weights of version {options.version}, root {result.root}"
    return {"to": options.version, **asdict(result)}, text, 0


def _rewind(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.records import Version

    _open_publisher(options).rewind(Version(options.version))
    return {"version": options.version}, f"version {options.version} is the newest now", 0


def _keygen(options: argparse.Namespace) -> tuple[Any, str, int]:
    from etude.weights.signing import make_keys

    public = make_keys(options.path)
    text = f"{options.path}: publisher.signing_key, to be kept secret\n{public}: subscriber.trusted_keys"
    return {"private": str(options.path), "public": str(public)}, text, 0


def _relay(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.weights.relay import RelayConfig, serve

    config = load_recipe(options.config, RelayConfig, options.set)
    serving, store = partial(serve, options.store, config), options.store
    return run_server(serving, config.token_path, options.json, f"relaying {store}", store=store)


def _opened(options: argparse.Namespace) -> tuple[Any, Any]:
    from etude.weights.opening import open_store
    from etude.weights.signing import load_keys

    return open_store(options.store), load_keys(trusted=options.trust)


def _open_pins(options: argparse.Namespace) -> Any:
    from etude.weights.chain import Chain
    from etude.weights.pins import Pins

    return Pins(Chain(*_opened(options)))


def _open_publisher(options: argparse.Namespace) -> Any:
    from etude.weights.opening import open_store
    from etude.weights.publisher import Publisher, PublisherConfig
    from etude.weights.signing import load_keys

    never = 1 << 40  # merged deltas, anchors and deletion are the run's own publisher's to decide
    store, keys = open_store(options.store), load_keys(options.key, options.trust)
    return Publisher(store, PublisherConfig(keep=never), keys, merge_over=(), anchor_every=never)


_ACTIONS = {
    "log": _log, "inspect": _inspect, "verify": _verify, "keygen": _keygen,
    "pins": _pins, "pin": _pin, "unpin": _unpin, "rollback": _rollback, "rewind": _rewind,
}  # fmt: skip

"""`etude cluster`: Ray over bare machines, started, looked at and ended over ssh; manifests for those of others."""

from __future__ import annotations

import argparse
import asyncio
import json
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etude.config import load_recipe
from etude.plain import say

if TYPE_CHECKING:
    from etude.rollouts.machines.bare import BareCluster, MachineStatus
    from etude.rollouts.machines.bare_config import BareConfig

FORMS = ("kuberay", "skypilot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, said in (
        ("up", "start Ray on every machine, and wait until all have joined"),
        ("status", "say of every machine whether it is alive; 1 where one is not"),
        ("down", "end every process that `up` has started, and what came of it"),
    ):
        action = actions.add_parser(name, help=said)
        action.add_argument("config", type=Path, metavar="FILE", help="a TOML file of the machines")
        action.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
        action.add_argument("--json", action="store_true", help="print one JSON object")
    manifest = actions.add_parser("manifest", help="write a recipe's run on Kubernetes or with SkyPilot as YAML")
    manifest.add_argument("recipe", type=Path, help="a TOML recipe with a table [machines]")
    manifest.add_argument("nodes", type=Path, metavar="NODES", help="a TOML file of the nodes")
    manifest.add_argument("--form", choices=FORMS, required=True, help="for `kubectl apply -f -`, or for `sky launch`")
    manifest.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    manifest.add_argument("--json", action="store_true", help="print one JSON object")
    wait = actions.add_parser("wait", help="until machines have joined a Ray that others have started")
    wait.add_argument("url", metavar="HOST:PORT", help="of the head")
    wait.add_argument("count", type=int, metavar="COUNT", help="how many machines, the head among them")
    wait.add_argument("--seconds", type=float, default=300.0, help="how long to wait for them (default: 300)")
    wait.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.action == "manifest":
        return _manifest(options)
    if options.action == "wait":
        return _wait(options)
    from etude.rollouts.machines.bare import BareCluster
    from etude.rollouts.machines.bare_config import BareConfig

    config = load_recipe(options.config, BareConfig, options.set)
    config.deadlines.apply()
    return {"up": _up, "status": _status, "down": _down}[options.action](BareCluster(config), config, options.json)


def _manifest(options: argparse.Namespace) -> int:
    from etude.rollouts.machines.manifest import planned, remarks, yaml_of
    from etude.rollouts.machines.nodes_config import NodesConfig

    run = planned(options.recipe, options.set, load_recipe(options.nodes, NodesConfig))
    documents = pkgutil.resolve_name(f"etude.rollouts.machines.{options.form}:documents_of")(run)
    for remark in remarks(run):
        say(f"etude cluster manifest: {remark}", sys.stderr)
    say(json.dumps({"form": options.form, "documents": documents}) if options.json else yaml_of(documents))
    return 0


def _wait(options: argparse.Namespace) -> int:
    from etude.config import parse
    from etude.rollouts.machines.config import MachinesConfig
    from etude.rollouts.machines.table import wait_for

    alive = wait_for(parse({"url": options.url}, MachinesConfig, "cluster wait").url, options.count, options.seconds)
    say(json.dumps({"url": options.url, "alive": alive}) if options.json else f"{alive} machines have joined")
    return 0


def _up(cluster: BareCluster, config: BareConfig, as_json: bool) -> int:
    found = asyncio.run(cluster.up())
    _tell(found, config, as_json)
    if not as_json:
        say(f'\nin a recipe, for `etude train` on {config.head.address}:\n[machines]\nurl = "{config.url}"')
        say(f'token_file = "{config.directory}/token"')
    return 0


def _status(cluster: BareCluster, config: BareConfig, as_json: bool) -> int:
    found = asyncio.run(cluster.status())
    _tell(found, config, as_json)
    return 0 if all(each.state == "alive" for each in found) else 1


def _down(cluster: BareCluster, config: BareConfig, as_json: bool) -> int:
    ended = asyncio.run(cluster.down())
    if as_json:
        say(json.dumps({"name": config.name, "ended": ended}))
        return 0
    for address, count in ended.items():
        say(f"{address}: {count} processes ended")
    return 0


def _tell(found: list[MachineStatus], config: BareConfig, as_json: bool) -> None:
    alive = sum(each.state == "alive" for each in found)
    if as_json:
        machines = [each.as_json() for each in found]
        say(json.dumps({"name": config.name, "url": config.url, "alive": alive, "machines": machines}))
        return
    say(f"{'machine':20} {'':5} {'state':12} {'processes':>9}  resources")
    for each in found:
        given = ", ".join(f"{name} {amount:g}" for name, amount in each.resources.items())
        count = "-" if each.processes is None else each.processes
        say(f"{each.address:20} {'head' if each.is_head else '':5} {each.state:12} {count:>9}  {each.why or given}")
    say(f"{alive} of {len(found)} machines alive")

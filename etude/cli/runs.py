"""`etude runs set RUN KEY=VALUE …`, `replace RUN KIND` and `engines RUN`: change a run while it goes on."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from etude.plain import say

KINDS = ("sessions", "rewards", "engine", "trainer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="runs_command", metavar="COMMAND", required=True)
    changing = commands.add_parser("set", help="change keys of the recipe that may change while it goes on")
    changing.add_argument("directory", metavar="RUN", type=Path, help="the run's directory, such as runs/quickstart-0")
    changing.add_argument("change", nargs="+", metavar="KEY=VALUE", help="for example groups.max_staleness=2")
    replacing = commands.add_parser("replace", help="let processes with the code on the disk take over")
    replacing.add_argument("directory", metavar="RUN", type=Path, help="the run's directory")
    replacing.add_argument("kind", choices=KINDS, help="which processes")
    engines = commands.add_parser("engines", help="list the engines, or have one more or one fewer")
    engines.add_argument("directory", metavar="RUN", type=Path, help="the run's directory")
    how = engines.add_mutually_exclusive_group()
    how.add_argument("--join", action="store_true", help="start one more; it samples once it has the newest version")
    how.add_argument("--leave", metavar="ENGINE", help="let this one end; its sessions go on elsewhere")
    for command in (changing, replacing, engines):
        command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.rollouts.live import ask

    if options.runs_command == "set":
        request = {"command": "set", "changes": options.change}
    elif options.runs_command == "engines":
        change = "join" if options.join else "leave" if options.leave else None
        request = {"command": "engines", "change": change, "name": options.leave}
    else:
        request = {"command": "replace", "kind": options.kind}
    said = ask(options.directory, request)
    say(json.dumps({"said": said}) if options.json else said)
    return 0

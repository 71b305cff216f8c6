"""`etude runs set RUN KEY=VALUE …`, `replace RUN KIND` and `engines RUN`: change a run while it goes on; `export RUN`:
tell its figures to a library of experiments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
from pathlib import Path

from etude.plain import say

KINDS = ("sessions", "rewards", "engine", "trainer")
LOOK_S = 1.0
"""Between two looks at a run that goes on."""


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
    telling = commands.add_parser("export", help="tell its figures to wandb, tensorboard or trackio, each once")
    telling.add_argument("directory", metavar="RUN", type=Path, help="the run's directory; it may go on, or be over")
    telling.add_argument("--to", metavar="SINK", required=True, help="wandb, tensorboard, trackio or one of your own")
    telling.add_argument("--follow", action="store_true", help="and those to come, until standard input ends")
    for command in (changing, replacing, engines, telling):
        command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    return _export(options) if options.runs_command == "export" else _ask(options)


def _export(options: argparse.Namespace) -> int:
    from etude.bench.sinks.base import open_sink
    from etude.bench.sinks.export import export

    with contextlib.redirect_stdout(sys.stderr):  # such libraries print as they please
        found = export(options.directory, options.to, open_sink(options.to), lambda: _over(options.follow))
    sent = ", ".join(f"{kind} {number}" for kind, number in found["sent"].items()) or "nothing"
    say(json.dumps(found) if options.json else f"{options.to}: up to {sent}, run {found['id']}: {found['see']}")
    return 0


def _over(follow: bool) -> bool:
    """Whether the run is over, as far as whoever started this says; waits between two looks."""
    return not follow or bool(select.select([sys.stdin], [], [], LOOK_S)[0] and not os.read(sys.stdin.fileno(), 1))


def _ask(options: argparse.Namespace) -> int:
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

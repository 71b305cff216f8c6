"""`etude runs set RUN KEY=VALUE …`, `replace RUN KIND` and `engines RUN`: change a run while it goes on; `export RUN`:
tell its figures to a library of experiments, or write its trajectories; `push RUN URL`: put it into an object store,
for a studio elsewhere; `gc RUN`: remove the oldest of its trajectories.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
from pathlib import Path

from etude.errors import ConfigError
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
    telling = commands.add_parser("export", help="tell its figures to a sink, each once, or write its trajectories")
    telling.add_argument("directory", metavar="RUN", type=Path, help="the run's directory; it may go on, or be over")
    what = telling.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="SINK", help="figures: to wandb, tensorboard, trackio or one of your own")
    what.add_argument("--format", metavar="FORMAT", help="trajectories: as atif, jsonl or parquet; needs --out")
    telling.add_argument("--follow", action="store_true", help="with --to: those to come, too, until stdin ends")
    telling.add_argument("--out", type=Path, metavar="FILE", help="with --format: the file; with atif, a directory")
    telling.add_argument(
        "--filter", action="append", default=[], metavar="KEY=VALUE",
        help="with --format: only those, as outcome=cheated, step=3..10, tool=grep; may be given several times"
    )  # fmt: skip
    pushing = commands.add_parser("push", help="put its files into an object store, where `etude studio URL` finds it")
    pushing.add_argument("directory", metavar="RUN", type=Path, help="the run's directory; it may go on, or be over")
    pushing.add_argument("store", metavar="URL", help="the store's, for example s3://bucket/runs")
    pushing.add_argument("--follow", action="store_true", help="what is to come, too, until the run has ended")
    pushing.add_argument("--name", help="what it is called there (default: as its directory)")
    pushing.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="tell the store, in obstore's terms, such as region=eu-west-1; may be given several times"
    )  # fmt: skip
    collecting = commands.add_parser("gc", help="remove the oldest trajectories of its archive")
    collecting.add_argument("directory", metavar="RUN", type=Path, help="the run's directory; it may go on, or be over")
    collecting.add_argument("--days", type=float, metavar="DAYS", help="those that are older")
    collecting.add_argument("--gigabytes", type=float, metavar="GB", help="as many as are beyond this size")
    for command in (changing, replacing, engines, telling, pushing, collecting):
        command.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    if options.runs_command == "gc":
        return _collect(options)
    if options.runs_command == "push":
        return _push(options)
    if options.runs_command == "export":
        return _export(options) if options.format is None else _write(options)
    return _ask(options)


def _export(options: argparse.Namespace) -> int:
    _refuse(options, "with --format alone", "out", "filter")
    from etude.bench.sinks.base import open_sink
    from etude.bench.sinks.export import export

    with contextlib.redirect_stdout(sys.stderr):  # such libraries print as they please
        found = export(options.directory, options.to, open_sink(options.to), lambda: _over(options.follow))
    sent = ", ".join(f"{kind} {number}" for kind, number in found["sent"].items()) or "nothing"
    say(json.dumps(found) if options.json else f"{options.to}: up to {sent}, run {found['id']}: {found['see']}")
    return 0


def _write(options: argparse.Namespace) -> int:
    from etude.archive.export import export
    from etude.archive.query import Filter
    from etude.archive.reader import ArchiveReader

    _refuse(options, "with --to alone", "follow")
    if options.out is None:
        raise ConfigError("--format: say with --out where the trajectories are to be")
    chosen = Filter.of(pairs("--filter", options.filter))
    with ArchiveReader(_archived(options.directory)) as reader:
        found = export(reader, chosen, options.format, options.out)
    told = {"file": str(options.out), "trajectories": found.trajectories, "bytes": found.bytes}
    text = f"{options.out}: {found.trajectories:,} trajectories, {found.bytes / 1e6:.1f} MB"
    say(json.dumps(told) if options.json else text)
    return 0


def _push(options: argparse.Namespace) -> int:
    from etude.studio.push import pushed
    from etude.weights.opening import open_store
    from etude.weights.store import StoreConfig

    store = open_store(options.store, StoreConfig(options=pairs("--set", options.set)))
    found = pushed(options.directory, store, options.name, options.follow, lambda said: say(said, sys.stderr))
    text = f"{found['url']}: {found['pieces']:,} pieces sent, {found['bytes'] / 1e6:.1f} MB"
    say(json.dumps(found) if options.json else text)
    return 0


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """KEY=VALUE, as often as it is given."""
    found = [each.partition("=") for each in given]
    if wrong := next((name for name, equals, _ in found if not equals), None):
        raise ConfigError(f"{option} {wrong}: is not of the form KEY=VALUE")
    return {name: value for name, _, value in found}


def _collect(options: argparse.Namespace) -> int:
    from etude.archive.retention import Retention, remove_old
    from etude.archive.writer import ARCHIVE

    if options.days is None and options.gigabytes is None:
        raise ConfigError("gc: say with --days or --gigabytes what is to stay")
    found = remove_old(_archived(options.directory) / ARCHIVE, Retention(options.gigabytes, options.days))
    told = {"chunks": found.chunks, "freed_bytes": found.bytes}
    text = f"{found.chunks} chunks removed, {found.bytes / 1e6:.1f} MB"
    say(json.dumps(told) if options.json else text)
    return 0


def _archived(directory: Path) -> Path:
    """A run with an archive."""
    from etude.archive.writer import ARCHIVE

    if not (directory / ARCHIVE).is_dir():
        raise ConfigError(f"{directory}: no archive of a run here; give the directory that `etude train` writes")
    return directory


def _refuse(options: argparse.Namespace, where: str, *names: str) -> None:
    if given := next((name for name in names if getattr(options, name)), None):
        raise ConfigError(f"--{given}: is of use {where}")


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

"""`etude studio [RUN or DIRECTORY …]`: a page where runs are looked at, in a browser."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "places",
        nargs="*",
        metavar="RUN",
        help="directories of runs, or such that hold some, or stores that runs were pushed to (default: runs)",
    )
    parser.add_argument("--port", type=int, help="where it listens; 0 is a free one (default: 8490)")
    parser.add_argument("--work", action="store_true", help="let who is in have agents at work, and write notes, too")
    parser.add_argument("--agent", type=Path, metavar="FILE", help="agent.toml for --work")
    parser.add_argument(
        "--agent-set", action="append", default=[], metavar="KEY=VALUE", help="override one key of that"
    )
    parser.add_argument("--config", type=Path, help="a TOML file of the server's config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write one run as a page that opens from disk")
    parser.add_argument("--json", action="store_true", help="say where it is as a JSON line")


def run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.errors import ConfigError
    from etude.product.config import load_agent
    from etude.studio.app import serve
    from etude.studio.config import StudioConfig

    if (options.agent or options.agent_set) and not options.work:
        raise ConfigError("--agent and --agent-set: are for agents at work; give --work too")
    sets = [*options.set, *([] if options.port is None else [f"port={options.port}"])]
    config = load_recipe(options.config, StudioConfig, sets)
    agent = load_agent(options.agent, options.agent_set) if options.work else None
    places = options.places or ["runs"]
    if options.export:
        return _exported(places, options.export, options.json)

    def ready(address: str, remarks: Sequence[str]) -> None:
        about = {"url": address.partition("/#")[0], "open": address, "token_file": str(config.token_path)}
        shown = f"the studio is at {address}\nthis address lets one tab in; the next is printed when it was used"
        said = about | ({"remarks": list(remarks)} if remarks else {})
        say(json.dumps(said) if options.json else "\n".join((shown, *remarks)))

    def again(address: str) -> None:
        say(f"a tab has come in; for another: {address}", sys.stderr)

    asyncio.run(serve(config, places, agent, ready, again))
    return 0


def _exported(places: Sequence[str], out: Path, as_json: bool) -> int:
    from etude.errors import ConfigError
    from etude.studio.report import write_report

    if len(places) != 1:
        raise ConfigError("--export: a report is of one run; give its directory, and no other")
    if not Path(places[0]).is_dir():
        raise ConfigError(f"{places[0]}: no such directory; a report is of one run: name its directory")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"--export {out}: cannot be written; name a file, in a directory that is there")
    asyncio.run(write_report(Path(places[0]), out))
    size = out.stat().st_size
    say(
        json.dumps({"report": str(out), "bytes": size})
        if as_json
        else f"{out}: {size / 1e6:.1f} MB; open it in a browser"
    )
    return 0

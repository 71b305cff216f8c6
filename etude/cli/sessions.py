"""`etude sessions`: one as Harbor's trajectory format."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser("export", help="write a session as a trajectory in ATIF v1.8")
    export.add_argument("session", metavar="SESSION", help="its id; `etude agent --list` shows those there are")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there (default: stdout)")
    export.add_argument("--json", action="store_true", help="print one JSON line about it; needs --output")


def run(options: argparse.Namespace) -> int:
    return {"export": _export}[options.action](options)


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
        options.output.write_bytes(encoded(whole))
    except OSError as error:
        raise ConfigError(f"--output: {options.output} cannot be written: {error.strerror}") from None
    about = {"session": options.session, "file": str(options.output), **whole["final_metrics"]}
    print(json.dumps(about) if options.json else f"{options.output}: {about['total_steps']} steps")
    return 0

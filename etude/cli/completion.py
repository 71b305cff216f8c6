"""`etude completion bash|zsh|fish`: a script by which a shell completes commands, options, choices and files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from etude.cli.parser import COMMANDS, actions_of, parser_of

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="whose script")


def run(options: argparse.Namespace) -> int:
    import shtab

    whole = parser_of(COMMANDS)
    _name_files(whole)
    sys.stdout.write(shtab.complete(whole, options.shell))
    return 0


def _name_files(parser: argparse.ArgumentParser) -> None:
    """Tell the library what is a file: every argument that is read as a path."""
    import shtab

    for action in parser._actions:
        if action.type is Path:
            action.complete = shtab.FILE  # ty: ignore[missing-attribute]
    for _, each in actions_of(parser):
        _name_files(each)

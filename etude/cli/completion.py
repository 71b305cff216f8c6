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
    _say_what_completes(whole)
    sys.stdout.write(shtab.complete(whole, options.shell))
    return 0


def _say_what_completes(parser: argparse.ArgumentParser) -> None:
    """Tell the library what is a file: every argument that is read as a path.

    A word that nothing completes gets an empty list: with the empty action of the library zsh says what the word is and
    then writes out no option that takes a value.
    """
    import shtab

    for action in parser._actions:
        if action.type is Path:
            action.complete = shtab.FILE  # ty: ignore[missing-attribute]
        elif not action.option_strings and not action.choices:
            action.complete = {"zsh": "()"}  # ty: ignore[missing-attribute]
    for _, each in actions_of(parser):
        _say_what_completes(each)

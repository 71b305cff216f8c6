"""The command line as a whole: which commands there are, and the parser of some or all of them.

Owns `COMMANDS` and `parser_of`. A command is a file of this package, imported only when it is asked for, so that
`etude --help` is quick. Runs nothing: `main` does.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Collection, Iterator
from typing import Any

from etude import __version__
from etude.cli.examples import EXAMPLES

COMMANDS = {
    "train": "run a recipe: evaluate, train, evaluate, report",
    "config": "print a recipe with every value in effect, and what differs from the defaults",
    "cluster": "Ray on bare machines over ssh: start, look, end; manifests for KubeRay and SkyPilot",
    "plan": "say what a recipe would do on this machine, and what would do more",
    "runs": "change a run while it goes on; export its figures and trajectories",
    "studio": "look at runs in a browser: curves, trajectories, versions",
    "pretrain": "make a base model: record sessions, mid-train, save",
    "init": "set up the agent: find a model, try it, and write agent.toml",
    "agent": "let a model work in your directory, with any OpenAI-compatible endpoint",
    "acp": "speak with an editor by the Agent Client Protocol, on stdin and stdout",
    "play": "let a checkpoint play a generated task in a sandbox, while you watch",
    "sessions": "serve sessions over HTTP, or write one as a trajectory in Harbor's format",
    "models": "bring a model in, hold it to transformers, take it out again",
    "serve": "serve a checkpoint to OpenAI's clients until SIGTERM",
    "environments": "sandboxes: serve, burst, doctor",
    "images": "build, add, list and collect the images sandboxes start on",
    "tasks": "mine tasks from a repository, generate and validate them",
    "bench": "play tasks with a policy, several attempts each; compare and report runs",
    "index": "build, look at and search the index by which the agent finds code",
    "weights": "log, inspect, verify, pin, roll back and sign a chain of versions",
    "doctor": "say what this machine can run, and how to get the rest",
    "completion": "print a script by which your shell completes what you type",
}


class _Formatter(argparse.HelpFormatter):
    """An example stands in one line, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Takes no flag by its beginning: `--mode` would be `--model`, and a new flag could change what a script means.
    What it does not know it answers with what may have been meant. Its help ends with an example. Its subparsers are
    such too.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, **settings)
        self.allow_abbrev = False
        if self.prog in EXAMPLES:
            self.epilog = f"example: {EXAMPLES[self.prog]}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = difflib.get_close_matches(str(value), choices, 1)
        known = f"did you mean {meant[0]}?" if meant else f"there is {', '.join(choices)}"
        if not meant and isinstance(action, argparse._SubParsersAction):
            known = f"`{self.prog} --help` lists what there is"
        raise argparse.ArgumentError(action, f"there is no {value!r}; {known}")


def parser_of(wanted: Collection[str]) -> Parser:
    """The parser of `etude`: of the commands wanted with all that they take, of the others with their name."""
    parser = Parser(prog="etude", description="Train a coding agent inside its own product.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, said in COMMANDS.items():
        command = commands.add_parser(name, help=said, description=said[0].upper() + said[1:] + ".")
        if name in wanted:
            module = importlib.import_module(f"etude.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def actions_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers below one, each with what help says of it, in the order of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {each.dest: each.help or "" for each in action._choices_actions}
            yield from ((shown[name], each) for name, each in action.choices.items())

"""The `etude` command: finds the subcommand and turns our errors into one line and an exit code.

Owns dispatch and exit codes (0 done, 1 failed, 2 an unknown flag, 42 bad input, 130 interrupted). Subcommands are one
file each and are imported only when called, so that `etude --help` is quick. Holds no logic of any room.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import pkgutil
import sys
from typing import Any

import structlog

from etude import __version__
from etude.errors import ConfigError, EtudeError, Interrupted
from etude.plain import plain_event, plain_traceback, say

COMMANDS = {
    "train": "run a recipe: evaluate, train, evaluate, report",
    "config": "print a recipe with every value in effect, and what differs from the defaults",
    "plan": "say what a recipe would do on this machine, and what would do more",
    "runs": "change a run while it goes on: set keys, replace processes",
    "pretrain": "make a base model: record sessions, mid-train, save",
    "init": "set up the agent: find a model, try it, and write agent.toml",
    "agent": "let a model work in your directory, with any OpenAI-compatible endpoint",
    "acp": "speak with an editor by the Agent Client Protocol, on stdin and stdout",
    "play": "let a checkpoint play a generated task in a sandbox, while you watch",
    "sessions": "serve sessions over HTTP, or write one as a trajectory in Harbor's format",
    "serve": "serve a checkpoint to OpenAI's clients until SIGTERM",
    "environments": "sandboxes: serve, burst, doctor",
    "images": "build, add, list and collect the images sandboxes start on",
    "tasks": "mine tasks from a repository, generate and validate them",
    "bench": "play tasks with a policy, several attempts each; compare and report runs",
    "weights": "log, inspect, verify, pin, roll back and sign a chain of versions",
    "doctor": "say what this machine can run, and how to get the rest",
}


_ELSEWHERE = "name another place (XDG_STATE_HOME, XDG_CACHE_HOME and XDG_CONFIG_HOME move what lies in your home)"
_SICK = {
    errno.ENOSPC: "the disk is full ({}); make room and go on",
    errno.EDQUOT: "the disk quota is used up ({}); make room and go on",
    errno.EROFS: "the file system is read-only ({}); let it be written to, or {elsewhere}, and go on",
    errno.EIO: "the disk fails ({}); look at the kernel's log, and go on from another disk",
    errno.EMFILE: "too many files are open ({}); raise the limit, `ulimit -n 65536`, and go on",
    errno.ENFILE: "too many files are open on this machine ({}); raise fs.file-max and go on",
    errno.EACCES: "not permitted ({}); give your user the right to it, or {elsewhere}",
    errno.ENOTDIR: "a file lies where a directory should be ({}); move it away, or {elsewhere}",
    errno.EEXIST: "something else lies there, or a link that leads nowhere ({}); move it away, or {elsewhere}",
    errno.ELOOP: "links lead in a circle ({}); remove one, or {elsewhere}",
}
"""What is wrong with the machine, and what to do. Any other error of the system is a bug of ours."""


_FILES = {
    "train": ("etude.rollouts.config:RunConfig",),
    "pretrain": ("etude.trainer.base_model:BaseConfig", "etude.trainer.warm_start:WarmStartConfig"),
    "bench run --config": ("etude.bench.config:BenchConfig",),
    "agent --config": ("etude.product.config:AgentConfig",),
    "sessions serve": ("etude.product.sessions.config:SessionsConfig",),
    "serve --config": ("etude.engine.server.app:ServeConfig",),
    "environments serve": ("etude.environments.server.app:ServerConfig",),
    "weights relay --config": ("etude.weights.relay:RelayConfig",),
    "images build --config": ("etude.environments.images.build:BuildConfig",),
    "tasks mine --config": ("etude.rewards.mining.mine:MineConfig",),
    "tasks generate --config": ("etude.rewards.mining.making:GenerateConfig",),
    "tasks import --config": ("etude.rewards.mining.importing:ImportConfig",),
}
"""What takes a TOML file, and the configs that one may be of."""
_ALIKE = {"config": "train", "plan": "train", "acp": "agent"}
"""Commands that take the file of another one."""
_TRAINING = ("train", "config", "plan", "pretrain", "play", "serve", "weights")
"""Commands that need the extra `train` as a whole, whichever of its packages they miss first."""


class Parser(argparse.ArgumentParser):
    """Takes no flag by its beginning: `--mode` would be `--model`, and a new flag could change what a script means.
    What it does not know it answers with what may have been meant. Its subparsers are such too.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.allow_abbrev = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = difflib.get_close_matches(str(value), choices, 1)
        known = f"did you mean {meant[0]}?" if meant else f"there is {', '.join(choices)}"
        if not meant and isinstance(action, argparse._SubParsersAction):
            known = f"`{self.prog} --help` lists what there is"
        raise argparse.ArgumentError(action, f"there is no {value!r}; {known}")


def os_error_line(error: OSError) -> str | None:
    """One line a user can act on; None for what is no fault of the machine's."""
    line = _SICK.get(error.errno or 0)
    if line is None or (error.errno == errno.EEXIST and os.path.isdir(error.filename or "")):
        return None
    return line.format(error, elsewhere=_ELSEWHERE)


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the console script."""
    parser = Parser(prog="etude", description="Train a coding agent inside its own product.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    argv = sys.argv[1:] if arguments is None else arguments
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text[0].upper() + help_text[1:] + ".")
        if name in argv[:1]:
            module = importlib.import_module(f"etude.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(argv)
    _log_to_stderr()
    try:
        return int(options.run(options) or 0)
    except ConfigError as error:
        say(f"etude {options.command}: {_of_another(options) or error}", sys.stderr)
        return 42
    except Interrupted as error:
        say(f"etude {options.command}: {error}", sys.stderr)
        return 130
    except EtudeError as error:
        say(f"etude {options.command}: {error}", sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (line := _of_an_extra(error, options.command)) is None:
            raise
        say(f"etude {options.command}: {line}", sys.stderr)
        return 1
    except BrokenPipeError:  # `etude … | head`: who reads has enough, and what is buffered must not be tried again
        os._exit(1)
    except OSError as error:
        if (line := os_error_line(error)) is None:
            raise
        say(f"etude {options.command}: {line}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        say(f"etude {options.command}: interrupted", sys.stderr)
        return 130


def _of_an_extra(error: ModuleNotFoundError, command: str) -> str | None:
    """One line that names the extra; None where the module is no extra's, so that its absence is a bug."""
    from etude.extras import extra_of, install_command

    extra = extra_of(error.name or "")
    if extra is None:
        return None
    return f"{error.name} is not installed: {install_command('train' if command in _TRAINING else extra)}"


def _of_another(options: argparse.Namespace) -> str | None:
    """Where the file is one for another command: this one knows less than half of its keys, and the other all."""
    from etude.config import read_toml

    file = getattr(options, "recipe", None) or getattr(options, "config", None)
    if file is None:
        return None
    try:
        keys = read_toml(file).keys()
    except (ConfigError, OSError):
        return None
    ours = _ALIKE.get(options.command, options.command)
    for line in sorted(_FILES, key=lambda line: line.split()[0] != ours):  # this command's own first
        most = max(len(keys & pkgutil.resolve_name(config).model_fields.keys()) for config in _FILES[line])
        if line.split()[0] == ours and 2 * most >= len(keys):
            return None
        if line.split()[0] != ours and most == len(keys):
            return f"{file}: this is a file for `etude {line}`"
    return None


def _log_to_stderr() -> None:
    """stdout is for what was asked for."""
    shown = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain_traceback)
    before = [each for each in structlog.get_config()["processors"] if not isinstance(each, type(shown))]
    structlog.configure([*before, plain_event, shown], logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


if __name__ == "__main__":
    sys.exit(main())

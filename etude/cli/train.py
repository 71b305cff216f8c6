"""`etude train RECIPE`: one run from its recipe to its report. The last line is one JSON object.

The command itself is the run's supervisor; the run is in a process below it (`--unsupervised`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from etude.errors import ConfigError, EtudeError, UnusedFeature
from etude.plain import say

_DUMP = "recipe.json"
"""A run's recipe, as it has written it down."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", type=Path, help="a TOML recipe, for example recipes/quickstart.toml; or the recipe.json of a run"
    )
    parser.add_argument(
        "--out", type=Path, help="run directory (default: runs/NAME-SEED, or with --resume where the recipe.json is)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in the directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the recipe"
    )
    parser.add_argument(
        "--report-to", action="append", default=[], metavar="SINK",
        help="tell the figures to wandb, tensorboard or trackio too; may be given several times"
    )  # fmt: skip
    parser.add_argument(
        "--serve", action="store_true", help="show the run in a browser meanwhile: print the address of `etude studio`"
    )
    parser.add_argument("--explain", metavar="KEY", help="say what a key does and where its value is from; run nothing")
    parser.add_argument(
        "--dry-run", action="store_true",
        help="say what each rank would hold and send, how fast, and what does not fit; run nothing, and read no weights"
    )  # fmt: skip
    parser.add_argument(
        "--on",
        metavar="MACHINE",
        help="with --dry-run: the accelerator of each rank, h100 say; without it this computer",
    )
    parser.add_argument(
        "--host-memory", type=float, metavar="GIB", help="with --on: the memory of each computer that has them"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the final JSON line")
    parser.add_argument(
        "--unsupervised", action="store_true", help="in this process: if it dies, nothing starts it again"
    )


def run(options: argparse.Namespace) -> int:
    if options.explain is not None:
        return _explain(options)
    for option, given in (("--on", options.on), ("--host-memory", options.host_memory)):
        if given is not None and not options.dry_run:
            raise ConfigError(f"{option}: says what a dry run is for; add --dry-run, or leave it out")
    if options.dry_run:
        return _dry_run(options)
    if options.serve and options.unsupervised:
        raise ConfigError("--serve: is the supervisor's; leave --unsupervised out, or start `etude studio` beside it")
    from etude.cli.stopping import stoppable

    with stoppable() as running:
        return _run(options, running) if options.unsupervised else _supervise(options)


def _explain(options: argparse.Namespace) -> int:
    from etude.explain import Explained, explanation_text
    from etude.rollouts.config import RunConfig

    said = Explained(options.recipe, RunConfig, options.set).explain(options.explain)
    say(json.dumps(said) if options.json else explanation_text(said))
    return 0


def _dry_run(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.rollouts.config import RunConfig
    from etude.rollouts.plan.dry_run import dry_run
    from etude.rollouts.plan.dry_run_lines import lines_of
    from etude.rollouts.plan.machines import HERE, machine_named

    config = load_recipe(options.recipe, RunConfig, options.set)
    found = dry_run(config, machine_named(options.on or HERE, config.trainer.processes, options.host_memory))
    say(json.dumps(found.as_json()) if options.json else "\n".join(lines_of(found)))
    return 0 if found.fits else 1


def _supervise(options: argparse.Namespace) -> int:
    from etude.bench.sinks.beside import sinks_of
    from etude.config import load_part
    from etude.rollouts.faults import Restarts, Supervised
    from etude.rollouts.supervisor import Supervisor, command_of

    recipe = load_part(options.recipe, Supervised, options.set)
    recipe.deadlines.apply()
    directory = _directory(options, recipe.name, recipe.seed)
    sets = [part for override in options.set for part in ("--set", override)]
    sets += [part for name in sinks_of(directory, options.report_to, options.resume) for part in ("--report-to", name)]
    flags = [flag for flag, given in (("--resume", options.resume), ("--json", options.json)) if given]
    command = command_of(["train", str(options.recipe), "--out", str(directory), *sets, *flags, "--unsupervised"])
    restarts = Restarts(recipe.faults, directory / "metrics.jsonl")
    beside = _studio_of(directory) if options.serve else []
    try:
        return Supervisor(command, "--resume", directory / _DUMP, restarts, beside).run()
    finally:
        _sweep(options)


def _directory(options: argparse.Namespace, name: str, seed: int) -> Path:
    if options.out is not None:
        return options.out
    if options.resume and options.recipe.name == _DUMP:
        return options.recipe.parent
    return Path("runs") / f"{name}-{seed}"


def _studio_of(directory: Path) -> list[str]:
    """The command that shows the run. It has one port for all its lives, so that a tab finds it again."""
    from etude.rollouts.supervisor import command_of
    from etude.serving.process import LOOPBACK, listening
    from etude.studio.config import StudioConfig

    config = StudioConfig()
    try:
        sock = listening(config.host, config.port, LOOPBACK)
    except ConfigError:  # another studio has it
        sock = listening(config.host, 0, LOOPBACK)
    with sock:
        port = sock.getsockname()[1]
    directory.mkdir(parents=True, exist_ok=True)
    return command_of(["studio", str(directory), "--port", str(port)])


def _sweep(options: argparse.Namespace) -> None:
    """Remove what sandboxes of processes that were killed have left, where no successor of theirs has done it yet."""
    from etude.config import load_part
    from etude.environments.backends import Sandboxed, sweep

    with contextlib.suppress(ConfigError):  # whoever used the recipe has said what is wrong with it
        sweep(load_part(options.recipe, Sandboxed, options.set).environment)


def _run(options: argparse.Namespace, running: Callable[[Coroutine[Any, Any, Any]], Any]) -> int:
    from etude.bench.sinks.beside import Beside, sinks_of
    from etude.config import load_recipe
    from etude.rollouts.config import RunConfig
    from etude.rollouts.run import Run
    from etude.rollouts.supervisor import CRASHED
    from etude.studio.report import write_report

    config = load_recipe(options.recipe, RunConfig, options.set)
    if config.rewards.judge is not None:
        config.rewards.judge.endpoint.read_key()  # what fails once Ray has started is buried under its alarms
    directory = _directory(options, config.name, config.seed)
    sinks = sinks_of(directory, options.report_to, options.resume)
    try:
        run = Run(config, directory, options.resume, quiet=options.json)
        summary, unused = None, None
        with Beside(directory, sinks):
            try:
                summary = running(run.execute())
            except UnusedFeature as error:  # the last thing that a run says, when all its work is done
                unused = error
        page = running(write_report(directory, directory / "report.html"))
    except (EtudeError, OSError):
        raise  # the command's own main says what it is
    except Exception:
        traceback.print_exc()
        return CRASHED
    if not options.json:
        say(f"report: {page}")
    if unused is not None:
        raise unused
    say(json.dumps(summary, default=float))
    return 0

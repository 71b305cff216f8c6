"""`etude bench run|compare|report|behaviour|judge`: what a policy solves, how sure that is, and who may judge it."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from etude.plain import say

if TYPE_CHECKING:
    from etude.bench.attempts import Played
    from etude.bench.config import BenchConfig
    from etude.rewards.judge import Judgement


_SEALED = (
    "real:exam is sealed: a result on it is for the end, and once somebody has changed something after seeing one it "
    "measures nothing more. Choices are made on real:eval."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    play = actions.add_parser("run", help="play tasks with a policy; going on where a run was stopped")
    said = "Harbor task directories, or directories of such; real:eval or real:exam, the built-in sets of real code"
    play.add_argument("tasks", nargs="*", metavar="TASKS", help=said)
    play.add_argument("--config", type=Path, help="a benchmark as TOML; recipes/bench.toml is one")
    play.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    play.add_argument("--ladder", type=int, metavar="N", help="the same as --set tasks.ladder=N: N tasks of each rung")
    who = play.add_mutually_exclusive_group()
    who.add_argument("--checkpoint", type=Path, help="play with this checkpoint, through our engine")
    who.add_argument("--endpoint", metavar="URL", help="play with a model behind an endpoint; give --model too")
    who.add_argument("--acp", metavar="COMMAND", help="play with an agent that speaks ACP, started by this command")
    who.add_argument("--solution", type=float, metavar="SKILL", help="play the tasks' solutions in such a share")
    play.add_argument("--model", metavar="NAME", help="the model's name at the endpoint")
    play.add_argument("--attempts", type=int, help="of each task")
    play.add_argument("--concurrency", type=int, help="attempts under way at once")
    play.add_argument("--out", type=Path, required=True, help="the run's directory")
    play.add_argument("--resume", action="store_true", help="go on with the run that is there")
    against = actions.add_parser("compare", help="the second run against the first, task by task")
    against.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    tell = actions.add_parser("report", help="what a run found, as text and as report.html in its directory")
    tell.add_argument("directory", type=Path, metavar="RUN")
    tell.add_argument("--against", type=Path, metavar="RUN", help="compare it with this earlier run on the page")
    ways = actions.add_parser("behaviour", help="how the behaviour of a run's policy changed with its compute")
    ways.add_argument("directory", type=Path, metavar="RUN", help="a run of etude train")
    believed = actions.add_parser("judge", help="how far a judge can be believed: its verdicts on labelled pairs")
    believed.add_argument("config", type=Path, metavar="FILE", help="pairs as TOML; recipes/judge.toml has some")
    believed.add_argument("--endpoint", metavar="URL", help="where the judge is; give --model too")
    believed.add_argument("--model", metavar="NAME", help="its name there")
    believed.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of FILE")
    for action in (play, against, tell, ways, believed):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    actions = {"run": _run, "compare": _compare, "report": _report, "behaviour": _behaviour, "judge": _judge}
    return actions[options.action](options)


def config_of(options: argparse.Namespace) -> BenchConfig:
    """What `bench run` plays."""
    from etude.bench.config import BenchConfig
    from etude.config import load_recipe
    from etude.errors import ConfigError

    said = list(options.set)
    built_in = [name.removeprefix("real:") for name in options.tasks if name.startswith("real:")]
    if len(built_in) > 1 or not {"eval", "exam"}.issuperset(built_in):
        raise ConfigError(f"real:{built_in[-1]}: the built-in sets are real:eval and real:exam; name one of them")
    if directories := [name for name in options.tasks if not name.startswith("real:")]:
        said += _toml({"tasks.directories": directories})
    given: dict[str, object] = {"tasks.real": built_in[0] if built_in else None}
    given |= {"tasks.ladder": options.ladder, "attempts": options.attempts, "concurrency": options.concurrency}
    player = _player(options)
    said += _toml(given | player)
    if player and not (options.checkpoint and _plays_a_checkpoint(options.config)):
        said.insert(0, "policy=")  # a file's keys, prices and headers are for the player that it names
    config = load_recipe(options.config, BenchConfig, said)
    if config.tasks.real == "exam":
        say(_SEALED, sys.stderr)
    config.deadlines.apply()
    return config


def _player(options: argparse.Namespace) -> dict[str, object]:
    """Who plays, where an option says so."""
    from etude.errors import ConfigError

    if options.endpoint is not None and options.model is None:
        raise ConfigError("--endpoint needs --model: the model's name there")
    if options.model is not None and options.endpoint is None:
        raise ConfigError("--model is the name of a model at an --endpoint; a directory is a --checkpoint")
    if options.checkpoint is not None:
        return {"policy.kind": "checkpoint", "policy.path": str(options.checkpoint)}
    if options.endpoint is not None:
        at = {"policy.endpoint.url": options.endpoint, "policy.endpoint.model": options.model}
        return {"policy.kind": "endpoint", **at}
    if options.acp is not None:
        try:
            return {"policy.kind": "acp", "policy.command": shlex.split(options.acp)}
        except ValueError as error:
            raise ConfigError(f"--acp {options.acp}: {error}; quote it as for a shell") from None
    if options.solution is not None:
        return {"policy.kind": "solution", "policy.skill": options.solution}
    return {}


def _plays_a_checkpoint(file: Path | None) -> bool:
    """Whether what a file says of its player, its engine above all, holds for another checkpoint too."""
    from etude.bench.config import CheckpointPolicy
    from etude.config import read_recipe

    policy = read_recipe(file).get("policy")
    kind = CheckpointPolicy.model_fields["kind"].default
    return isinstance(policy, dict) and policy.get("kind", kind) == kind


def _toml(given: Mapping[str, object]) -> list[str]:
    """Overrides, of what is given at all."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value is not None]


def _run(options: argparse.Namespace) -> int:
    from etude.bench.run import run_bench
    from etude.bench.summary import summarise
    from etude.bench.text import run_summary
    from etude.errors import Interrupted

    config = config_of(options)
    try:
        found = asyncio.run(run_bench(config, options.out, resume=options.resume, on_done=_progress))
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; what had ended is in {options.out}: go on with --resume") from None
    summary = summarise(found)
    say(json.dumps(summary) if options.json else run_summary(summary))
    return 0 if summary["judged"] == summary["planned"] else 1


def _progress(played: Played | None, done: int, planned: int) -> None:
    """One line an attempt, on stderr."""
    if played is None:
        say(f"{done} of {planned} attempts are there", sys.stderr)
        return
    one = played.attempt
    mark = {True: "✓", False: "✗", None: "!"}[one.solved]
    say(f"{done:>5}/{planned} {mark} {one.task} #{one.attempt} {one.why} ({played.seconds:.1f} s)", sys.stderr)


def _compare(options: argparse.Namespace) -> int:
    from etude.bench.results import read_run
    from etude.bench.summary import compare
    from etude.bench.text import comparison_text

    found = compare(*map(read_run, options.runs))
    say(json.dumps(found) if options.json else comparison_text(found))
    return 0


def _report(options: argparse.Namespace) -> int:
    from etude.bench.page import write_page
    from etude.bench.results import read_run
    from etude.bench.summary import compare, summarise
    from etude.bench.text import comparison_text, run_summary

    run, against = read_run(options.directory), options.against and read_run(options.against)
    summary, compared = summarise(run), compare(against, run) if against else None
    page = write_page(run, summary, compared)
    if options.json:
        say(json.dumps({**summary, "compared": compared, "page": str(page)}))
    else:
        say("\n\n".join([run_summary(summary), *([comparison_text(compared)] if compared else []), str(page)]))
    return 0


def _behaviour(options: argparse.Namespace) -> int:
    from etude.bench.behaviour import as_json, behaviour_of, behaviour_page, trends_summary

    trends = behaviour_of(options.directory)
    page = behaviour_page(options.directory, trends)
    say(json.dumps({**as_json(trends), "page": str(page)}) if options.json else f"{trends_summary(trends)}\n\n{page}")
    return 0


def _judge(options: argparse.Namespace) -> int:
    from etude.config import load_recipe
    from etude.rewards.judge.calibration import CalibrationConfig, calibration_of

    given = _toml({"judge.endpoint.url": options.endpoint, "judge.endpoint.model": options.model})
    anew = ["judge.endpoint="] if options.endpoint else []  # a file's key is for the server that it names
    config = load_recipe(options.config, CalibrationConfig, [*anew, *options.set, *given])
    found = asyncio.run(calibration_of(config, _judged))
    problems = found.problems(config.limits)
    heading = f"{config.judge.endpoint.model} at {config.judge.endpoint.url}, {len(config.pairs)} pairs"
    text = f"{heading}\n{found.text(config.limits)}"
    say(json.dumps({**found.as_json(), "problems": problems}) if options.json else text)
    return 1 if problems else 0


def _judged(judgement: Judgement, done: int, planned: int) -> None:
    """One line a judgement, on stderr."""
    from etude.rewards.judge import Judged

    verdict = ("yes" if judgement.met else "no") if isinstance(judgement, Judged) else judgement.why
    say(f"{done:>5}/{planned} {verdict:10} {judgement.criterion[:80]}", sys.stderr)

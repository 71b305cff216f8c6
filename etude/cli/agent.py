"""`etude agent [PROMPT]`: a model works in your directory; you watch and are asked, or with --print a script does."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from etude.plain import say

if TYPE_CHECKING:
    from etude.harness.store import SessionStore
    from etude.product.config import AgentConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="what to do first; - reads it from stdin, with --print")
    parser.add_argument("--dir", type=Path, help="work here instead of in the current directory")
    parser.add_argument("--config", type=Path, help="agent.toml (default: ~/.config/etude/agent.toml, if it is there)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of it")
    parser.add_argument("--endpoint", metavar="URL", help="the same as --set endpoint.url=URL")
    parser.add_argument("--model", metavar="NAME", help="the same as --set endpoint.model=NAME")
    parser.add_argument("--allow", action="append", default=[], metavar="RULE", help='permit this now: "run(pytest *)"')
    past = parser.add_argument_group("past sessions").add_mutually_exclusive_group()
    past.add_argument(
        "-c", "--continue", dest="latest", action="store_true", help="the newest session of this directory"
    )
    past.add_argument(
        "-r", "--resume", metavar="ID", help="this session; with --print and no prompt, from where it was cut short"
    )
    past.add_argument("--fork", metavar="ID", help="a new session with this one's past")
    past.add_argument("--list", action="store_true", help="the sessions of this directory, the newest first")
    acts = parser.add_argument_group("to a past session, with -c or -r").add_mutually_exclusive_group()
    acts.add_argument(
        "--undo", nargs="?", type=int, const=0, metavar="TURNS", help="take back the last prompt, or so many turns"
    )
    acts.add_argument("--redo", action="store_true", help="bring back what was undone")
    acts.add_argument("--diff", action="store_true", help="print what changed since its start, as a patch")
    acts.add_argument("--compact", action="store_true", help="have the model summarise now")
    headless = parser.add_argument_group("without anybody watching")
    headless.add_argument(
        "-p", "--print", action="store_true", help="do it, print the answer, and exit with 0, 1, 42, 43, 53 or 130"
    )
    headless.add_argument("--output-format", choices=("text", "json", "stream-json"), default="text")
    headless.add_argument("--json", action="store_true", help="--output-format json; with --list, one object a line")
    several = parser.add_argument_group("several agents side by side, each in a worktree and a sandbox of its own")
    work = several.add_mutually_exclusive_group()
    work.add_argument("--best-of", type=int, metavar="N", help="let N agents do the PROMPT, and rank what they leave")
    work.add_argument("--fleet", metavar="FILE", help="an agent for each task of a file, one a line; - is stdin")
    work.add_argument("--results", nargs="?", const="", metavar="RUN", help="how they did, in the newest run or in RUN")
    several.add_argument("--tests", metavar="COMMAND", help="the same as --set ranking.tests=COMMAND")
    several.add_argument("--lints", metavar="COMMAND", help="the same as --set ranking.lints=COMMAND")
    several.add_argument(
        "--apply", metavar="best|all|N", help="bring a result into your tree: of this run, or of the newest"
    )


def run(options: argparse.Namespace) -> int:
    from etude.errors import ConfigError
    from etude.harness.store import SessionStore

    store, directory = SessionStore(), (options.dir or Path.cwd()).resolve()
    if not directory.is_dir():
        raise ConfigError(f"--dir {options.dir}: no such directory")
    if options.list:
        return _list(store, directory, options.json)
    if options.best_of is not None or options.fleet is not None:
        return _side_by_side(options, store, directory)
    if options.results is not None or options.apply is not None:
        from etude.product.fleet import face

        return asyncio.run(face.tell(directory, store, options.results or None, options.json, options.apply))
    if options.undo is not None or options.redo or options.diff or options.compact:
        return _act(options, store, directory)
    return (_print if options.print else _terminal)(options, store, directory)


def _act(options: argparse.Namespace, store: SessionStore, directory: Path) -> int:
    from etude.errors import ConfigError
    from etude.product import headless

    if options.prompt is not None or not (options.latest or options.resume):
        raise ConfigError("--undo, --redo, --diff and --compact take a session, -c or -r ID, and no prompt")
    what = "redo" if options.redo else "diff" if options.diff else "compact" if options.compact else "undo"
    session = _session(options, store, directory)
    assert session is not None, "one was asked for"
    act = headless.Act(what, directory, session, options.json, options.undo or None)
    return asyncio.run(headless.act(_config(options), act, store))


def _terminal(options: argparse.Namespace, store: SessionStore, directory: Path) -> int:
    from etude.errors import ConfigError
    from etude.product.terminal.face import Face, Opened

    if options.json or options.output_format != "text":
        raise ConfigError("--json and --output-format are for --print; add it, or leave them out")
    _set_up(options)
    opened = Opened(directory, _session(options, store, directory), options.prompt, options.allow)
    return asyncio.run(Face(_config(options), store, opened).run())


def _print(options: argparse.Namespace, store: SessionStore, directory: Path) -> int:
    from etude.errors import ConfigError
    from etude.product import headless

    session = _session(options, store, directory)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    if prompt is None and session is None:
        raise ConfigError("--print needs a PROMPT, or - to read it from stdin")
    output = "json" if options.json else options.output_format
    asked = headless.Asked(prompt, directory, output, session, options.allow)
    return asyncio.run(headless.run(_config(options), asked, store))


def _side_by_side(options: argparse.Namespace, store: SessionStore, directory: Path) -> int:
    from etude.errors import ConfigError
    from etude.product.fleet import face
    from etude.product.fleet.play import Asked

    if (options.prompt is None) != (options.fleet is not None):
        raise ConfigError("--best-of needs a PROMPT, --fleet has its tasks in a file; give one of the two")
    if options.fleet is not None:
        tasks = face.tasks_in(sys.stdin.read() if options.fleet == "-" else _text(Path(options.fleet)))
    else:
        tasks = face.best_of(options.best_of, sys.stdin.read() if options.prompt == "-" else options.prompt)
    asked = Asked(tasks, directory, options.allow)
    return asyncio.run(face.run(_config(options), asked, store, options.json, options.apply))


def _text(file: Path) -> str:
    from etude.errors import ConfigError

    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _config(options: argparse.Namespace) -> AgentConfig:
    from etude.product.config import config_file, load_agent
    from etude.product.setup.found import with_own_context

    given = [("endpoint.url", options.endpoint), ("endpoint.model", options.model)]
    given += [("ranking.tests", options.tests), ("ranking.lints", options.lints)]
    overrides = [*(f"{key}={json.dumps(value)}" for key, value in given if value), *options.set]
    config = load_agent(options.config, overrides)
    if any(each.partition("=")[0].strip() == "context_tokens" for each in options.set):
        return config
    config, remark = asyncio.run(with_own_context(config, options.config or config_file()))
    if remark:
        say(remark, sys.stderr)
    return config


def _set_up(options: argparse.Namespace) -> None:
    """The first start, where a person can be asked: what `etude init` does."""
    from etude.product.config import config_file
    from etude.product.setup.ask import Given, set_up
    from etude.product.terminal.screen import Screen, usable

    named = options.config or options.endpoint or any(each.startswith("endpoint") for each in options.set)
    if named or config_file().exists() or not (usable(sys.stdin) and usable(sys.stdout)):
        return
    screen = Screen()
    screen.line("This is the first start: no model is named yet.")
    done = set_up(Given(model=options.model or ""), config_file(), screen)
    screen.line((f"wrote {done.file}", "dim"))


def _session(options: argparse.Namespace, store: SessionStore, directory: Path) -> str | None:
    """The session to go on with; None for a new one."""
    from etude.errors import ConfigError

    if options.latest:
        found = store.sessions(directory)
        if not found:
            raise ConfigError(f"there is no session of {directory} to go on with; leave out --continue")
        return found[0].id
    return asyncio.run(store.fork(options.fork)) if options.fork else options.resume


def _list(store: SessionStore, directory: Path, as_json: bool) -> int:
    from etude.plain import short_line

    for each in store.sessions(directory):
        if as_json:
            say(json.dumps({"session_id": each.id, "last_active": each.last_active.isoformat(), "task": each.task}))
        else:
            say(f"{each.id}  {each.last_active:%Y-%m-%d %H:%M}  {short_line(each.task, 80)}")
    return 0

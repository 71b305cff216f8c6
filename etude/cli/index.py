"""`etude index build|status|search|push|fetch|gc`: the index by which the agent searches a directory."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from etude.cli.runs import pairs
from etude.plain import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    build = actions.add_parser("build", help="take in what has changed in a directory")
    status = actions.add_parser("status", help="how far the index is behind the files, and what the store holds")
    search = actions.add_parser("search", help="ask a question; each piece is shown whole")
    search.add_argument("question", nargs="+", help="what you look for, in words")
    search.add_argument("--limit", type=int, default=8, metavar="N", help="so many pieces at most (default: 8)")
    push = actions.add_parser("push", help="put what is known of a commit's files where a team shares it, sealed")
    fetch = actions.add_parser("fetch", help="build with what was pushed for this commit, or one soon before it")
    for action in (push, fetch):
        action.add_argument("store", metavar="STORE", help="a directory, or an object store: s3://bucket/team, gs://…")
        action.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE",
            help="an option of an object store, such as endpoint or region; may be given more than once",
        )  # fmt: skip
    for action in (build, status, search, push, fetch):
        action.add_argument("--dir", type=Path, default=Path(), help="the directory (default: this one)")
    collect = actions.add_parser("gc", help="forget directories that are gone, and make the store smaller")
    collect.add_argument("--most-mb", type=int, metavar="MB", default=2048, help="what may stay (default: 2048)")
    for action in (build, status, search, push, fetch, collect):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.search.workspace import open_store

    store = open_store(_warn)
    try:
        report, text = _ACTIONS[options.action](store, options)
    finally:
        store.close()
    say(json.dumps(report) if options.json else text)
    return 0


def _build(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.search.told import tell_built
    from etude.search.workspace import build

    built = build(options.dir, store, _warn, _ignore if options.json else _progress, _embedder())
    return _named(built), tell_built(built)


def _status(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.search.told import tell_status
    from etude.search.workspace import status

    found = status(options.dir, store, _warn, _embedder())
    return _named(found), tell_status(found)


def _search(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.search.told import tell_found
    from etude.search.workspace import search

    found = search(options.dir, store, " ".join(options.question), options.limit, _warn, _embedder())
    return {"hits": [asdict(each) for each in found]}, tell_found(found)


def _push(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.product.searching import push
    from etude.search.told import tell_pushed

    pushed = push(options.dir, store, options.store, pairs("--set", options.set), _warn)
    return _named(pushed), tell_pushed(pushed)


def _fetch(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.product.searching import fetch
    from etude.search.told import tell_built

    set_, on_read = pairs("--set", options.set), _ignore if options.json else _progress
    built = fetch(options.dir, store, options.store, set_, _warn, on_read)
    return _named(built), tell_built(built)


def _gc(store: Any, options: argparse.Namespace) -> tuple[Any, str]:
    from etude.search.told import tell_collected
    from etude.search.workspace import collect

    before, after = collect(store, options.most_mb)
    return {"before": asdict(before), "after": asdict(after)}, tell_collected(before, after)


def _named(report: Any) -> dict[str, Any]:
    """By the names of docs/json.md."""
    found = asdict(report)
    return {"cwd": found.pop("workspace"), **found}


def _embedder() -> Any:
    from etude.product.searching import own_embedder

    return own_embedder()


def _ignore(*_: int) -> None:
    """Who reads JSON wants no lines beside it."""


def _progress(done: int, of: int) -> None:
    if done % 1000 == 0:
        say(f"{done} of {of} files are read", sys.stderr)


def _warn(text: str) -> None:
    say(text, sys.stderr)


_ACTIONS = {"build": _build, "status": _status, "search": _search, "push": _push, "fetch": _fetch, "gc": _gc}

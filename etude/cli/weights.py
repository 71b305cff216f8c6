"""`etude weights log|inspect|verify STORE`: the chain of versions in a store."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["log", "inspect", "verify"], help="list versions, look at one, or check all")
    parser.add_argument("store", help="a store's URL or directory, for example runs/quickstart-0/weights")
    parser.add_argument("--version", type=int, help="which version to inspect (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    from etude.records import Version
    from etude.weights import inspect as look
    from etude.weights.store import open_store
    from etude.weights.subscriber import Subscriber

    store = open_store(options.store)
    if options.action == "log":
        lines = look.log(store)
        print(json.dumps([asdict(line) for line in lines]) if options.json else look.format_log(lines))
        return 0
    if options.action == "inspect":
        version = Subscriber(store).latest() if options.version is None else Version(options.version)
        detail = look.inspect(store, version)
        print(json.dumps(asdict(detail)) if options.json else look.format_inspect(detail))
        return 0
    report = look.verify(store)
    print(json.dumps(asdict(report)) if options.json else look.format_verify(report))
    return 0 if report.ok else 1

"""Processes that kill tests kill, and how they die: by SIGKILL before a chosen call to the store.

They are forked from a server process that has imported everything and touched nothing, so that a kill costs
milliseconds; a process that is new from the start costs seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from weight_samples import make_chain

from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber, SubscriberConfig

CHAIN = make_chain(60)
CONFIG = PublisherConfig(keep=2, merge_over=(2, 4), merge="always", anchor_every=4)
WRITES, READS = ("put", "delete"), ("get", "get_range", "list", "exists")
LONGEST_S = 120


def start(victim: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process of its own that runs one of the functions below."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["victims"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    try:
        process = context.Process(target=victim, args=arguments, daemon=True)
        process.start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return process


def ended(process: BaseProcess) -> bool:
    """Wait for a victim; whether it came to its end, and was not killed on the way."""
    process.join(LONGEST_S)
    assert process.exitcode in (0, -signal.SIGKILL), f"the victim ended with {process.exitcode}"
    return process.exitcode == 0


def die_before(survived: int, methods: tuple[str, ...]) -> None:
    """From now on this process is killed before its call number `survived` (from 0) of these methods of a store."""
    calls = 0

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            if calls == survived:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return method(*arguments, **options)

        return call

    for name in methods:
        setattr(Store, name, dying(getattr(Store, name)))


def publish(directory: Path, versions: range, survived: int) -> None:
    """Goes on with a chain, through merged deltas, an anchor and retention."""
    publisher = Publisher(open_store(directory), CONFIG)
    publisher.resume()
    die_before(survived, WRITES)
    for version in versions:
        publisher.publish(Version(version), CHAIN[version])


def publish_on(directory: Path, last: int) -> None:
    """Goes on from the newest version to the last, whatever became of those before it."""
    publisher = Publisher(open_store(directory), CONFIG)
    newest = publisher.resume()
    for version in range(0 if newest is None else newest + 1, last + 1):
        publisher.publish(Version(version), CHAIN[version])


def roll_back(directory: Path, version: int, survived: int) -> None:
    die_before(survived, WRITES)
    Publisher(open_store(directory), CONFIG).rollback(Version(version))


def rewind(directory: Path, version: int, survived: int) -> None:
    die_before(survived, WRITES)
    Publisher(open_store(directory), CONFIG).rewind(Version(version))


def pin(directory: Path, version: int, survived: int) -> None:
    pins = Pins(Chain(open_store(directory)))
    die_before(survived, (*WRITES, *READS))
    pins.set(Version(version), "victim")
    pins.remove(Version(version), "victim")


def follow(directory: Path, served: Path, versions: tuple[int, ...], survived: int) -> None:
    """Fetches one version after the other, with a lease, and writes down what it serves."""
    subscriber = Subscriber(open_store(directory), SubscriberConfig(lease_s=3600))
    die_before(survived, (*WRITES, *READS))
    bits, held = None, None
    for version in versions:
        bits, _ = subscriber.fetch(bits, held, Version(version))
        held = Version(version)
        with served.open("a") as log:
            log.write(f"{version} {root_of(bits)}\n")

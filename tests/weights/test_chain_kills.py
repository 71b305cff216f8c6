"""Kill -9 of publisher, subscriber and store at every step of the protocol: nothing half-visible, nothing mixed."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import durable_s3
import pytest
import victims
from victims import CHAIN, SETTINGS
from weight_samples import publisher_on, same

from etude.errors import WeightError
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.inspect import verify
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.pins import Pins
from etude.weights.store import Patience, Store, StoreConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
ROOTS = [root_of(bits) for bits in CHAIN]


def publish(directory: Path, versions: range) -> None:
    publisher = publisher_on(open_store(directory), **SETTINGS)
    for version in versions:
        publisher.publish(V(version), CHAIN[version])


def newest_of(directory: Path) -> Version:
    """The newest version, after a look at everything there is."""
    report = verify(open_store(directory))
    assert report.ok, report.problems
    subscriber = Subscriber(open_store(directory))
    newest = subscriber.latest()
    bits, result = subscriber.fetch(None, None, newest)
    assert result.root == root_of(bits)
    return newest


def at_every_step(
    template: Path, directory: Path, kill: Callable[[Path, int], bool], check: Callable[[Path], Any]
) -> int:
    """Kill at step 0, 1, 2, … of something done to copies of a store, until it survives; returns how many steps."""
    for step in itertools.count():
        copy = directory / str(step)
        shutil.copytree(template, copy)
        survived = kill(copy, step)
        check(copy)
        shutil.rmtree(copy)
        if survived:
            return step
    raise AssertionError("unreachable")


# --- the publisher ----------------------------------------------------------------------------------------------------


@pytest.mark.proof(18)
def test_a_publisher_killed_before_every_write_and_deletion(tmp_path: Path) -> None:
    """Versions 5 to 8 come with deltas, merged deltas of 2 and 4, an anchor, and the deletion of what is old."""
    publish(tmp_path / "store", range(5))
    seen = []

    def check(directory: Path) -> None:
        newest = newest_of(directory)
        seen.append(newest)
        assert same(Subscriber(open_store(directory)).fetch(CHAIN[4], V(4), newest)[0], CHAIN[newest])
        publisher = publisher_on(open_store(directory), **SETTINGS)
        assert publisher.publish(V(newest), CHAIN[newest]).kind == "existing"
        for version in (newest + 1, newest + 2):  # far enough for a sweep of its own
            publisher.publish(V(version), CHAIN[version])
        assert newest_of(directory) == newest + 2
        assert same(Subscriber(open_store(directory)).fetch(None, None, V(newest + 2))[0], CHAIN[newest + 2])
        assert not any("going" in names for names in Chain(open_store(directory)).listing().values())

    steps = at_every_step(
        tmp_path / "store",
        tmp_path / "killed",
        lambda directory, step: victims.ended(victims.start(victims.publish, directory, range(5, 9), step)),
        check,
    )
    assert seen == sorted(seen)
    assert set(seen) == {4, 5, 6, 7, 8}
    assert steps > 25  # packs and manifests of 4 deltas, 3 merged ones and an anchor; marks; deletions


def test_a_rollback_killed_before_every_write(tmp_path: Path) -> None:
    publish(tmp_path / "store", range(3))

    def check(directory: Path) -> None:
        newest = newest_of(directory)
        assert Subscriber(open_store(directory)).fetch(None, None, newest)[1].root == ROOTS[1 if newest == 3 else 2]

    steps = at_every_step(
        tmp_path / "store",
        tmp_path / "killed",
        lambda directory, step: victims.ended(victims.start(victims.roll_back, directory, 1, step)),
        check,
    )
    assert steps == 3  # a pack, a manifest, a pin


@pytest.mark.proof(3)
def test_a_rewind_killed_before_every_deletion(tmp_path: Path) -> None:
    publish(tmp_path / "store", range(4))

    def check(directory: Path) -> None:
        newest = newest_of(directory)
        assert same(Subscriber(open_store(directory)).fetch(None, None, newest)[0], CHAIN[newest])
        publisher_on(open_store(directory), **SETTINGS).rewind(V(1))
        assert newest_of(directory) == 1

    at_every_step(
        tmp_path / "store",
        tmp_path / "killed",
        lambda directory, step: victims.ended(victims.start(victims.rewind, directory, 1, step)),
        check,
    )


def test_publishers_killed_at_any_moment_and_a_reader_beside_them(tmp_path: Path) -> None:
    """One publisher after the other dies in the midst of its work; who follows never has anything but a version."""
    directory, rng, done = tmp_path / "store", random.Random(4), threading.Event()
    publish(directory, range(1))
    problems: list[str] = []
    served: list[int] = []

    def follow() -> None:
        subscriber, bits, held = Subscriber(open_store(directory), SubscriberConfig(lease_s=60)), None, None
        while not done.is_set() or held != 59:
            time.sleep(0.01)
            try:
                target = subscriber.latest()
                bits, result = subscriber.fetch(bits, held, target)
            except WeightError as error:
                if "is not whole" not in str(error) and "no way from" not in str(error):
                    problems.append(str(error))
                    return
                continue
            held = target
            served.append(held)
            if result.root != ROOTS[held]:
                problems.append(f"version {held} has root {result.root}")

    reader = threading.Thread(target=follow)
    reader.start()
    killed = 0
    while Subscriber(open_store(directory)).latest() < 59:
        publisher = victims.start(victims.publish_on, directory, 59)
        publisher.join(rng.uniform(0.05, 0.6) if killed < 12 else victims.LONGEST_S)
        publisher.kill()
        publisher.join()
        killed += 1
    done.set()
    reader.join(victims.LONGEST_S)
    assert problems == []
    assert not reader.is_alive()
    assert newest_of(directory) == 59
    assert served[-1] == 59


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.proof(6)
def test_a_subscriber_killed_at_every_request(tmp_path: Path) -> None:
    """Whatever it had served was a version; what it leaves behind is at most a lease."""
    publish(tmp_path / "store", range(7))
    versions = tuple(Subscriber(open_store(tmp_path / "store")).chain.versions()[-3:])

    def kill(directory: Path, step: int) -> bool:
        survived = victims.ended(victims.start(victims.follow, directory, directory / "served", versions, step))
        lines = (directory / "served").read_text().splitlines() if (directory / "served").exists() else []
        assert lines == [f"{version} {ROOTS[version]}" for version in versions[: len(lines)]]
        return survived

    def check(directory: Path) -> None:
        assert newest_of(directory) == 6
        assert len(Pins(Chain(open_store(directory))).live()) <= 2
        publish_again = publisher_on(open_store(directory), **SETTINGS)
        for version in range(7, 10):
            publish_again.publish(V(version), CHAIN[version])
        assert newest_of(directory) == 9

    assert at_every_step(tmp_path / "store", tmp_path / "killed", kill, check) > 10


@pytest.mark.proof(2)
def test_who_pins_killed_at_every_request(tmp_path: Path) -> None:
    publish(tmp_path / "store", range(7))

    def check(directory: Path) -> None:
        publisher = publisher_on(open_store(directory), **SETTINGS)
        for version in range(7, 13):
            publisher.publish(V(version), CHAIN[version])
        for pin in Pins(Chain(open_store(directory))).live():
            assert same(Subscriber(open_store(directory)).fetch(None, None, pin.version)[0], CHAIN[pin.version])
        assert newest_of(directory) == 12

    at_every_step(
        tmp_path / "store",
        tmp_path / "killed",
        lambda directory, step: victims.ended(victims.start(victims.pin, directory, 6, step)),
        check,
    )


# --- the store --------------------------------------------------------------------------------------------------------


class MortalStore:
    """A store's process, and another one in its place when it has died, as an orchestrator would have it."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, 0
        directory.mkdir()
        self._process: subprocess.Popen[str] | None = self._start()

    def store(self) -> Store:
        options = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
        options["endpoint"] = f"http://127.0.0.1:{self.port}"
        return open_store("s3://bucket/run", StoreConfig(options=options), Patience(60, 5))

    def doom(self, request: int, phase: str) -> None:
        """From now on the process dies at that request, and another one takes its place."""
        self.close()
        self._process = self._victim = self._start(str(request), phase)
        self._keeper = threading.Thread(target=self._keep, args=(self._victim,), daemon=True)
        self._keeper.start()

    def has_died(self) -> bool:
        """Whether the doomed process met its end; another one is there then."""
        try:
            self._victim.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        self._keeper.join(30)
        return True

    def _keep(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if self._process is process:
            self._process = self._start()

    def _start(self, *fatal: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", durable_s3.__file__, str(self.directory), str(self.port), *fatal]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        return process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalStore]:
    store = MortalStore(tmp_path / "objects")
    yield store
    store.close()


@pytest.mark.proof(3)
@pytest.mark.parametrize("phase", durable_s3.PHASES)
def test_a_store_killed_at_every_request(mortal: MortalStore, phase: str) -> None:
    """Publisher and reader go on over its deaths, before, in the middle of and after what it was asked to do."""
    store = mortal.store()
    publisher, subscriber = publisher_on(store, **SETTINGS), Subscriber(store)
    publisher.publish(V(0), CHAIN[0])
    held = 0
    for request in itertools.count():
        version = held + 1
        mortal.doom(request, phase)
        result = publisher.publish(V(version), CHAIN[version])
        assert (result.kind, result.root) == ("delta", ROOTS[version])
        bits, _ = subscriber.fetch(CHAIN[held], V(held), V(version))
        assert same(bits, CHAIN[version])
        held = version
        if not mortal.has_died():
            break
    assert held > 6  # a publish and a fetch take more requests than that
    report = verify(store)
    assert report.ok, report.problems
    assert publisher.counters["deleted_versions"] > 0

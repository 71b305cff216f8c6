"""A journal whose process was killed is the next one's, though a child of the killed one has its files open still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.environments.journal import Journal as ServersJournal
from etude.errors import EtudeError
from etude.harness.journal import Journal
from etude.host import lock
from etude.rewards.mining.journal import Journal as MiningJournal

OPENED = {
    "a session's": lambda path: Journal(path / "s.jsonl"),
    "an environment server's": lambda path: ServersJournal(path, 60.0, 1),
    "mining's": lambda path: MiningJournal(path / "m.jsonl", {}),
}


@pytest.fixture(params=OPENED.values(), ids=list(OPENED))
def opened(request: pytest.FixtureRequest) -> Callable:
    return request.param


@pytest.fixture
def forked(tmp_path: Path, opened: Callable):
    """A process that has it, and its child that has not become its program; what lets that child end."""
    (ready, tell), (wait, end) = os.pipe(), os.pipe()
    process = os.fork()
    if not process:
        os.close(ready)
        try:
            kept = opened(tmp_path)  # noqa: F841  # open until the process ends
            if os.fork():
                signal.pause()
            os.close(end)
            os.write(tell, b"x")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(tell)
    try:
        assert os.read(ready, 1), "it could not open it"
        yield process, end
    finally:
        os.write(end, b"x")
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # a test has killed it
            killed(process)
        for each in (ready, wait, end):
            os.close(each)


def killed(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def test_a_killed_ones_child_is_waited_for(
    tmp_path: Path, opened: Callable, forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, end = forked
    waits = []

    def sleep(_: float) -> None:
        waits.append(os.write(end, b"x") if not waits else 0)

    killed(process)
    monkeypatch.setattr(lock.time, "sleep", sleep)
    opened(tmp_path).close()
    assert waits, "the child had it no more, and shows nothing"


def test_a_wait_has_an_end_that_says_for_what(
    tmp_path: Path, opened: Callable, forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(forked[0])
    monkeypatch.setattr(lock, "CHILD_S", 0.0)
    with pytest.raises(EtudeError, match=r"another .*a killed one's child, for 0 s"):
        opened(tmp_path)


def test_one_that_lives_is_named_at_once(
    tmp_path: Path, opened: Callable, forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock.time, "sleep", lambda _: pytest.fail("it waited for a process that lives"))
    with pytest.raises(EtudeError, match=f"another .*process {forked[0]}"):
        opened(tmp_path)
    killed(forked[0])

"""git of ours does not outlive us: a process that is killed leaves none at work in a repository of the user's."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

READING = """
import asyncio, sys
from pathlib import Path
from etude.host.git import GitContext, run_git, run_git_now

words, at = ("hash-object", "--no-filters", "endless"), GitContext(cwd=Path(sys.argv[1]))
asyncio.run(run_git(*words, at=at)) if sys.argv[2] == "loop" else run_git_now(*words, at=at)
"""
DEADLINE_S = 120


def opened_for_writing(pipe: Path) -> int:
    """As soon as somebody reads it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: nobody yet
            time.sleep(0.02)
    raise AssertionError("git did not begin to read")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_who_is_killed_leaves_no_git(tmp_path: Path, where: str, number: signal.Signals) -> None:
    """It reads what never ends. The other end of the pipe tells when nobody reads any more."""
    os.mkfifo(tmp_path / "endless")
    with subprocess.Popen([sys.executable, "-c", READING, str(tmp_path), where]) as ours:
        writing = opened_for_writing(tmp_path / "endless")
        try:
            ours.send_signal(number)
            assert ours.wait(DEADLINE_S) == -number
            left = select.poll()
            left.register(writing, 0)  # POLLERR is always told
            assert left.poll(DEADLINE_S * 1000), "git reads on"
        finally:
            os.close(writing)  # whatever read on comes to its end

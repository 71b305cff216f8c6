"""A directory beside all others: nobody takes it from a process that lives, and it does not outlive a killed one."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from etude.host.scratch import Scratch

MADE = """
import sys
from etude.host.scratch import Scratch
scratch = Scratch("etude-tried-")
(scratch.path / "file").write_text("x")
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made(beside: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", MADE], env={**os.environ, "TMPDIR": str(beside)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def an_hour_ago(path: Path) -> None:
    os.utime(path, times=(path.stat().st_mtime - 3600,) * 2)


def test_what_a_killed_process_has_left_is_removed_by_the_next_and_nothing_else(beside):
    (dead, left), (alive, held) = made(beside), made(beside)
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    others = beside / "etude-other"
    others.mkdir()
    (beside / "etude-tried-link").symlink_to(others)
    fresh = beside / "etude-tried-fresh"  # one that was made this moment has no lock yet
    fresh.mkdir()
    for path in (left, held, others):
        an_hour_ago(path)
    scratch = Scratch("etude-tried-")
    assert not left.exists() and (held / "file").exists() and others.is_dir() and fresh.is_dir()
    alive.communicate("")
    assert not held.exists(), "who ends by itself removes its own"
    scratch.remove()
    assert not scratch.path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_users_is_left_alone(beside):
    theirs = beside / "etude-tried-theirs"
    theirs.mkdir()
    os.chown(theirs, 12_345, 12_345)
    an_hour_ago(theirs)
    Scratch("etude-tried-")
    assert theirs.is_dir()

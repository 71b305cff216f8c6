"""A disk that is too small, for a test to fill: a tmpfs of its own, mounted where the writes under test go."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest


class Disk:
    """A mounted tmpfs. What fills it is one file, which `clear` removes."""

    def __init__(self, at: Path):
        self.at, self._ballast = at, at / "ballast"

    def fill(self, leave: int = 0):
        """Take all the room there is but `leave` bytes, in whole pages."""
        with self._ballast.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):  # ENOSPC
                while True:
                    file.write(bytes(1 << 16))
            file.truncate(max(0, file.tell() - leave))

    def clear(self):
        self._ballast.unlink(missing_ok=True)

    def remount(self, options: str):
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.at)], check=True, timeout=30)


@contextlib.contextmanager
def mounted(at: Path, size: str, files: int = 10_000):
    """A tmpfs of so many bytes and files at `at`."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk to fill")
    at.mkdir(parents=True, exist_ok=True)
    options = f"size={size},nr_inodes={files},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "etude-test", str(at)]
    done = subprocess.run(command, capture_output=True, timeout=30)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield Disk(at)
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True, timeout=30)

"""Debian packages that tests need and install themselves, one installation at a time on this machine."""

import os
import shutil
import subprocess

import pytest

_LOCK = "/var/lock/etude-tests-apt"
"""Two test processes that install at once would find apt's own locks taken, and fail."""
_DEADLINE_S = 280


def install(*packages):
    """Install them with this machine's package manager; skip the test, saying why, where that cannot be."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"this needs {' '.join(packages)}, which only root with apt-get can install")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["flock", _LOCK, "apt-get", "-o", f"DPkg::Lock::Timeout={_DEADLINE_S}", *words],
            capture_output=True, text=True, timeout=2 * _DEADLINE_S, env=env,
        )  # fmt: skip
        assert done.returncode == 0, f"apt-get {' '.join(words)}: {done.stderr}"


def program(name, package):
    """Install what `name` is in, unless it is there."""
    if shutil.which(name) is None:
        install(package)

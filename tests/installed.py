"""The clients that people use, installed from their registries into a folder of the tests.

Where one cannot be installed, its tests fail with the reason: a client that nobody met is not known to work. Who has no
network sets ETUDE_OFFLINE=1, and they are skipped.
"""

import os
import shutil
import subprocess
import sys

import pytest

_DEADLINE_S = 150
"""Less than a test may take, which waits for it."""


def npm(where, *packages):
    """The folder of the programs of these packages."""
    if shutil.which("npm") is None:
        lacking(f"this needs {' '.join(packages)}, which only npm can install")
    _run(["npm", "install", "--prefix", str(where), "--no-audit", "--no-fund", *packages])
    return where / "node_modules/.bin"


def pip(where, *packages):
    """The Python of an environment that has these packages."""
    _run([sys.executable, "-m", "venv", str(where)])
    _run([str(where / "bin/python"), "-m", "pip", "install", "-q", *packages])
    return where / "bin/python"


def lacking(reason):
    """Ends the test: skipped where ETUDE_OFFLINE=1 says that no client can be had, failed everywhere else."""
    offline = os.environ.get("ETUDE_OFFLINE") == "1"
    (pytest.skip if offline else pytest.fail)(f"{reason} (ETUDE_OFFLINE=1 skips the tests of clients)")


def _run(words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return lacking(f"{' '.join(words)}: not done after {_DEADLINE_S} s")
    if done.returncode:
        lacking(f"{' '.join(words)}: {done.stderr[-500:]}")

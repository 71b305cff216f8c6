"""The clients that people use, installed from their registries into a folder of the tests."""

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
        pytest.skip(f"this needs {' '.join(packages)}, which only npm can install")
    _run(["npm", "install", "--prefix", str(where), "--no-audit", "--no-fund", *packages])
    return where / "node_modules/.bin"


def pip(where, *packages):
    """The Python of an environment that has these packages."""
    _run([sys.executable, "-m", "venv", str(where)])
    _run([str(where / "bin/python"), "-m", "pip", "install", "-q", *packages])
    return where / "bin/python"


def _run(words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_DEADLINE_S, env=os.environ)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{' '.join(words)}: not done after {_DEADLINE_S} s")
    if done.returncode:
        pytest.skip(f"{' '.join(words)}: {done.stderr[-500:]}")

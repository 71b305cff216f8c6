"""Thousands of broken messages in every run of the tests; a million by the same command, in docs/results.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_parser_under_broken_messages() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "parser.py"), "--inputs", "6000", "--characters", "20000"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["inputs"], figures["exceptions"], figures["torn"], figures["lost"]) == (6000, 0, 0, 0), done.stdout
    assert figures["rescued"] >= 0.95 > figures["rescued_strictly"] > 0.6
    assert figures["growth"] < 30, done.stdout  # eight times the text; quadratic would be 64

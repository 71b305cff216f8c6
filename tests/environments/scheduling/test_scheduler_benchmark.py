"""The benchmark runs at small size, loses nothing, and ends with the figures the issue names."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_benchmark_of_the_scheduler():
    command = [sys.executable, str(ROOT / "benchmarks" / "scheduler.py")]
    command += ["--nodes", "50", "--sandboxes", "1500", "--grow-to", "10000"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["lost"] == 0 and figures["outcomes"] == {"done": 1500}
    assert figures["placements_per_s"] > 0 and 0 < figures["packing"] <= 1
    assert 0 < figures["packing_arriving"] <= 1
    assert 0 < figures["ready_s_p50"] <= figures["ready_s_p99"]
    assert set(figures["us_by_sandboxes"]) == {"1000", "10000"} and set(figures["us_by_nodes"]) == {"100"}

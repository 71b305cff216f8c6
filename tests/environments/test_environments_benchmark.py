"""The benchmark of sandboxes runs at small size, leaves nothing behind, and ends with the figures the docs name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.proof(4)
@pytest.mark.timeout(300)
def test_the_benchmark_of_sandboxes():
    command = [sys.executable, str(ROOT / "benchmarks" / "environments.py")]
    command += ["--alive", "3", "6", "--repeats", "2", "--forks", "3", "--vm", "none"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["leaks"] == 0 and figures["alive"] == [3, 6]
    for count in (3, 6):
        assert 0 < figures[f"create_ms_p50_{count}"] <= figures[f"create_ms_p99_{count}"]
        assert 0 < figures[f"exec_ms_p50_{count}"] <= figures[f"exec_ms_p99_{count}"]
    for key in ("create_ms_p50_alone", "exec_ms_p50", "snapshot_ms_p50", "fork3_ms"):
        assert figures[key] > 0
    assert figures["read_ms_p50"] > 0 and figures["http_read_ms_p50"] > 0 and figures["http_exec_ms_p50"] > 0
    assert figures["unshare_create_ratio"] > 0 and figures["unshare_exec_ratio"] > 0
    assert isinstance(figures["idle_mib"], float)  # what else runs here is in it too
    assert "gvisor_create_ratio" in figures
    assert "not measured: left out" in done.stdout and figures["vm_boot_ms"] is figures["vm_fork_ms_p50"] is None

"""Many trajectories that end at once: none that is right scores 0, and none that is wrong scores anything."""

import json
import subprocess
import sys
from pathlib import Path

from proofs import often

ROOT = Path(__file__).parents[2]
COUNT = often(20, 100)


def test_however_many_at_once_are_all_scored_as_they_are():
    command = [sys.executable, str(ROOT / "benchmarks" / "reward_path.py"), "--count", str(COUNT)]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["failures_scored_as_0"] == said["successes_made_up"] == said["infra_failed"] == 0, done.stdout
    assert said["judged_at_once"] == COUNT and said["scored_1"] == COUNT // 2

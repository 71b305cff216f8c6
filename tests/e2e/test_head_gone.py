"""A run whose head of Ray is killed under it: it ends by itself, with a sentence that says what to do."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
from small import ROOT, command, lines, variables

pytestmark = pytest.mark.proof(75)
HEAD = """
import sys
from pathlib import Path
import ray
from etude.rollouts.own_ray import start_ray
start_ray(Path(sys.argv[1]), {})
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


def test_a_run_ends_with_its_head_and_says_what_to_do(tmp_path):
    out = tmp_path / "run"
    holds = subprocess.Popen(
        [sys.executable, "-c", HEAD, str(tmp_path)], cwd=ROOT, env=variables(), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    below = []
    try:
        url = holds.stdout.readline().strip()
        below = psutil.Process(holds.pid).children(recursive=True)
        sets = (f'machines.url="{url}"', f'machines.token_file="{tmp_path}/ray.token"', "rollouts.max_minutes=20")
        run = subprocess.Popen(
            command(out, *sets, "rollouts.total_minutes="), cwd=ROOT, env=variables(), stderr=subprocess.PIPE, text=True
        )
        below.append(psutil.Process(run.pid))
        deadline = time.monotonic() + 300
        while not lines(out, "phase"):
            assert time.monotonic() < deadline and run.poll() is None, run.stderr.read()
            time.sleep(0.2)
        [head] = [each for each in below if each.name() == "gcs_server"]
        head.send_signal(signal.SIGKILL)
        _, said = run.communicate(timeout=300)
    finally:
        for each in below:
            if each.is_running():
                each.kill()
        holds.kill()
        holds.wait()
    assert run.returncode == 1, said[-2000:]
    assert f"etude train: the head at {url} is gone: it did not answer for 40 s; after `etude cluster up`," in said

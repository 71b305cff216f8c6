"""What a run says when something is wrong: one message, no traceback, and what to do."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import ROOT, command, run, steps, variables

from etude.environments.build import default_cache_dir, guest_program
from etude.trainer.checkpoint import checkpoints, claim

pytestmark = pytest.mark.timeout(420)


def refused(done, *words, code=1):
    assert done.returncode == code, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("etude train: ")]
    assert len(lines) == 1, done.stderr[-2000:]
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.proof(4)
def test_a_wrong_key_is_named(tmp_path):
    done = run(tmp_path / "run", "trainer.loss.bnad=0.1")
    refused(done, "trainer.loss.bnad: unknown key", "band", code=42)


@pytest.mark.proof(4)
def test_a_missing_model_is_named(tmp_path):
    refused(run(tmp_path / "run", f"model.path={tmp_path}/nowhere"), "nowhere", "model.path", code=42)


def test_a_corrupt_model_is_named(tmp_path):
    model = shutil.copytree(ROOT / "models/etude-tiny", tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    refused(run(tmp_path / "run", f"model.path={model}"), "model.safetensors", code=42)


@pytest.mark.proof(8)
def test_a_missing_binary_is_named_with_what_to_run(tmp_path):
    guest_program(default_cache_dir())  # so that nothing but bubblewrap is missing
    done = run(tmp_path / "run", PATH=str(Path(sys.executable).parent))
    refused(done, "bubblewrap is not installed", "apt-get install")


@pytest.mark.proof(31)
def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_used_or_asked_for(tmp_path):
    out = tmp_path / "run"
    limits = ("rollouts.max_steps=2", "rollouts.max_minutes=10")
    process = subprocess.Popen(
        command(out, *limits), cwd=ROOT, env=variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for_steps(process, out, 1)
    process.kill()
    process.wait()
    claim(out, 60).close()  # its trainer may still be writing
    for checkpoint in checkpoints(out / "checkpoints"):
        data = bytearray(checkpoint.read_bytes())
        data[len(data) // 2] ^= 1
        checkpoint.write_bytes(bytes(data))
    refused(run(out, *limits, resume=True), ".ckpt", "delete")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 160 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can make a small file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.proof(36)
def test_a_disk_that_fills_up_ends_the_run_with_one_message_and_it_can_go_on(small_disk):
    out = small_disk / "run"
    limits = ("rollouts.max_steps=4", "rollouts.max_minutes=10")
    process = subprocess.Popen(
        command(out, *limits), cwd=ROOT, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_steps(process, out, 1)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536) == 65536:
                pass
        except OSError:
            pass
    stdout, stderr = process.communicate(timeout=300)
    refused(subprocess.CompletedProcess([], process.returncode, stdout, stderr), "disk is full")
    filler.unlink()
    done = run(out, *limits, resume=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert steps(out)[-1]["version"] == 4


def wait_for_steps(process, out, count):
    deadline = time.monotonic() + 300
    while len(steps(out)) < count:
        assert process.poll() is None, "the run ended before its first step"
        assert time.monotonic() < deadline, f"{count} steps within 300 s"
        time.sleep(0.2)

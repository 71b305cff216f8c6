"""Checkpoints: whole or named, kept in order, and written by one process at a time."""

import resource
import signal
import subprocess
import sys

import pytest
import torch

from etude.errors import CheckpointError
from etude.trainer.checkpoint import checkpoints, claim, load, load_latest, save

HOLD = """
import sys
from pathlib import Path
from etude.trainer.checkpoint import claim
held = claim(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def state(number):
    return {"trainer": {"weights": torch.full((64,), float(number))}, "controller": {"next_task": number}}


def test_the_newest_is_loaded_and_older_ones_make_room(tmp_path):
    assert load_latest(tmp_path) is None
    for number in (9, 10, 11):
        save(tmp_path, number, state(number))
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000010.ckpt", "step-00000011.ckpt"]
    newest = load_latest(tmp_path)
    assert newest["controller"] == {"next_task": 11}
    assert torch.equal(newest["trainer"]["weights"], state(11)["trainer"]["weights"])
    assert not list(tmp_path.glob("*.partial"))
    checkpoints(tmp_path)[-1].unlink()
    assert load_latest(tmp_path)["controller"] == {"next_task": 10}


@pytest.mark.parametrize("where", [0, 20, 500, -1])
def test_one_wrong_bit_is_found(tmp_path, where):
    path = save(tmp_path, 1, state(1))
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"step-00000001.*(delete it|not an Etude checkpoint)"):
        load(path)


@pytest.mark.parametrize("share", [0, 0.1, 0.9])
def test_a_torn_file_is_found(tmp_path, share):
    path = save(tmp_path, 1, state(1))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="step-00000001"):
        load(path)


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match="another run"):
        claim(tmp_path, patience_s=0.3)
    first.kill()
    first.wait()
    with claim(tmp_path, patience_s=5), pytest.raises(CheckpointError, match="another run"):
        claim(tmp_path, patience_s=0.0)
    first.stdin.close()
    first.stdout.close()


HOLDING = """
import resource, sys, torch
from pathlib import Path
from etude.trainer.checkpoint import load_latest, save
state = {str(n): torch.ones(1 << 20) for n in range(64)}  # 256 MB
def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = most()
save(Path(sys.argv[1]), 1, state)
saved = most()
del state
assert set(load_latest(Path(sys.argv[1]))) == {str(n) for n in range(64)}
print(saved - before, most() - before)
"""


def test_a_state_is_never_held_twice(tmp_path):
    ran = subprocess.run([sys.executable, "-c", HOLDING, tmp_path], capture_output=True, text=True, check=True)
    saving, loading = map(int, ran.stdout.split())
    assert saving < 64 and loading < 96, "MB more than the state of 256 MB"


def test_a_write_that_is_refused_halfway_ends_in_its_own_error_and_leaves_the_older_ones(tmp_path):
    save(tmp_path, 1, state(1))
    large = {"weights": torch.ones(1 << 18)}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path, 2, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, former)
    assert load_latest(tmp_path)["controller"] == {"next_task": 1}
    assert not list(tmp_path.glob("*.partial"))

"""The Ray of a run, and a stranger who reaches its ports."""

import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import worker

from etude.errors import EtudeError
from etude.rollouts.claim import RAY_TOKEN
from etude.rollouts.own_ray import start_ray, stop_ray

pytestmark = pytest.mark.timeout(300)
STRANGER = """
from ray._raylet import GcsClient
store = GcsClient(address=%r)
store.internal_kv_put(b"stranger", b"was here", True, None)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    start_ray(directory, {}, num_cpus=1, object_store_memory=80 * 1024 * 1024)
    yield directory
    stop_ray(directory)
    assert not (directory / RAY_TOKEN).exists() and "RAY_AUTH_TOKEN_PATH" not in os.environ


def write(**variables):
    """What comes of another process that writes into Ray's store, with these variables of Ray's alone."""
    code = STRANGER % ray.get_runtime_context().gcs_address
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=200
    )


def test_a_ray_that_does_not_start_is_told_of_in_one_sentence(tmp_path):
    """Before the one of this module: there is one in a process."""
    with pytest.raises(EtudeError, match=r"^Ray did not start on this machine \(.*object store"):
        start_ray(tmp_path, {}, object_store_memory=1)
    assert not ray.is_initialized() and not (tmp_path / RAY_TOKEN).exists()


def test_whoever_lacks_the_run_s_token_is_refused(directory):
    path = directory / RAY_TOKEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whoever = write(RAY_AUTH_MODE="disabled"), write(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert all(each.returncode and "nauthenticated" in each.stderr for each in whoever), whoever
    known = write(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(path))
    assert not known.returncode, known.stderr


def test_neither_a_command_line_nor_a_variable_nor_a_log_has_the_token(directory):
    token = (directory / RAY_TOKEN).read_text()
    below = psutil.Process().children(recursive=True)
    assert {"gcs_server", "raylet"} <= {each.name() for each in below}
    for each in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, as another test's may
            said = [*each.cmdline(), *each.environ().values()]
            assert not [word for word in said if token in word], each.name()
    logs = [path for path in Path(worker._global_node.get_session_dir_path()).rglob("*") if path.is_file()]
    assert len(logs) > 5 and not [path for path in logs if token.encode() in path.read_bytes()]

"""The Ray that a run joins: one that is not there, or that ends, is told of in a sentence."""

import queue
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from etude.errors import ConfigError, EtudeError
from etude.rollouts.machines.config import MachinesConfig
from etude.rollouts.machines.head import HeadWatch
from etude.rollouts.machines.joining import join
from etude.rollouts.own_ray import know_token

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
HEAD = """
import sys
from pathlib import Path
import ray
from etude.rollouts.own_ray import start_ray
start_ray(Path(sys.argv[1]), {}, num_cpus=1, object_store_memory=80 * 1024 * 1024)
context = ray.get_runtime_context()
print(context.gcs_address, context.get_node_id(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def head(tmp_path, monkeypatch):
    """A Ray of another process: that one, its address and the id of this machine in it. This process has its token."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
    command = [sys.executable, "-c", HEAD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        below = []
        try:
            url, node = process.stdout.readline().split()
            below = psutil.Process(process.pid).children(recursive=True)
            know_token(tmp_path / "ray.token")
            yield process, url, node
        finally:
            for each in below:
                if each.is_running():
                    each.kill()
            process.kill()


def refused(url, token=None):
    with pytest.raises(EtudeError) as error:
        join(MachinesConfig(url=url, token_file=token), {})
    return str(error.value)


def test_a_head_that_is_not_there_is_told_of_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"machines.url: nothing listens at {url}; `etude cluster up` starts a head there" in refused(url)


def test_a_token_that_is_not_there_or_not_the_clusters_is_told_of(head, tmp_path):
    _, url, _ = head
    with pytest.raises(ConfigError, match=r"machines.token_file: .*none: no such file; `etude cluster up` writes it"):
        join(MachinesConfig(url=url, token_file=tmp_path / "none"), {})
    (tmp_path / "other").touch(0o600)
    (tmp_path / "other").write_text("x" * 24)
    assert f"machines.token_file: the Ray at {url} does not take this token" in refused(url, tmp_path / "other")


def test_a_head_that_ends_or_that_another_has_replaced_is_gone(head):
    process, url, node = head
    said = queue.SimpleQueue()
    HeadWatch(url, "0" * 56, said.put, 600, 0.2)
    assert said.get(timeout=60) == f"the head at {url} is gone: another was started in its place"
    watch = HeadWatch(url, node, said.put, 2, 0.2)
    with pytest.raises(queue.Empty):
        said.get(timeout=4)
    for each in psutil.Process(process.pid).children(recursive=True):
        if each.name() == "gcs_server":
            each.send_signal(signal.SIGKILL)
    assert said.get(timeout=60) == f"the head at {url} is gone: it did not answer for 2 s"
    watch.close()

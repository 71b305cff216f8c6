"""A Docker engine of the tests' own, where one is installed: without a network, its files in a directory of its own."""

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import machine_image
import pytest

_START_S = 60
_WORDS = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false")


@contextmanager
def docker_engine(place: Path):
    """Its socket; it has the image `machine`."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("no Docker engine to start: it needs root, and dockerd (apt-get install docker.io)")
    socket, root = place / "docker.sock", place / "root"
    root.mkdir()
    machine_image.build(root)
    own = [
        f"--data-root={place}/data",
        f"--exec-root={place}/exec",
        f"--pidfile={place}/pid",
        f"--host=unix://{socket}",
    ]
    with (place / "log").open("w") as log:
        engine = subprocess.Popen(["dockerd", *_WORDS, *own], stdout=log, stderr=log, start_new_session=True)
    try:
        client, end = ["docker", f"--host=unix://{socket}"], time.monotonic() + _START_S
        while subprocess.run([*client, "version"], capture_output=True).returncode:
            if engine.poll() is not None or time.monotonic() > end:
                pytest.skip(f"dockerd does not start here: {(place / 'log').read_text()[-500:]}")
            time.sleep(0.1)
        packed = subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run([*client, "import", "-", "machine"], stdin=packed.stdout, check=True, capture_output=True)
        assert packed.wait() == 0
        yield socket
    finally:
        engine.terminate()
        engine.wait(_START_S)

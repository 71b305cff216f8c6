"""Environment servers for the tests: one shared where nothing is restarted, or one of the test's own."""

import os
import tempfile
from pathlib import Path

import pytest
from env_serving import Served

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where restarts do not wait for a disk."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that is stopped in the end, and then has left nothing."""
    served = Served(tmp_path_factory.mktemp("server"), node={"waiting_starts": 6}).start()
    try:
        yield served
        served.stop()
        assert served.left() == []
    finally:
        served.end()


@pytest.fixture
def make_server():
    """Start servers with configs of the test's own."""
    made = []

    def make(name="only", **given):
        directory = Path(place, name)
        directory.mkdir(exist_ok=True)
        made.append(Served(directory, **given))
        return made[-1].start()

    with tempfile.TemporaryDirectory(prefix="etude-test-", dir=MEMORY) as place:
        yield make
        for served in made:
            served.end()

"""A backend of the test's own, or a real server for whoever restarts none, with nothing left of either afterwards."""

import pytest
from scenarios import within

from etude.environments.namespace import NamespaceBackend, NamespaceConfig


@pytest.fixture
def run(tmp_path):
    """Run `scenario(backend)` on a fresh event loop and backend, within a deadline."""

    def runner(scenario, config=None, deadline_s=60.0):
        return within(deadline_s, lambda: NamespaceBackend(config or NamespaceConfig()), scenario)

    return runner


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A real environment server in a process of its own, with the namespace backend behind it."""
    from env_serving import Served

    server = Served(tmp_path_factory.mktemp("served")).start()
    try:
        yield server
        server.stop()
        assert server.left() == []
    finally:
        server.end()


@pytest.fixture
def from_afar(served):
    """Run `scenario(backend)` on a fresh event loop and client of the real server, which is alive afterwards."""

    def runner(scenario, deadline_s=60.0):
        within(deadline_s, served.client, scenario)
        assert served.process.exitcode is None

    return runner

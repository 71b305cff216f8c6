"""What every backend must do alike, the cluster's does too: the same scenarios, over Ray.

Those of archives and of what programs meet are left out, for time: they try a sandbox, and not the way to it.
"""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from cluster_machines import machine, serving
from scenarios import EVERYWHERE, within

from etude.environments.backends import open_backend
from etude.environments.cluster.config import ClusterConfig
from etude.environments.cluster.launch import launch

SUITE = Path(__file__).parents[1] / "conformance"
LEFT_OUT = ("test_archives", "test_programs")


def scenarios():
    """Every test of the suite, under a name that says where it is from."""
    for path in sorted(SUITE.glob("test_*.py")):
        if path.stem in LEFT_OUT:
            continue
        spec = importlib.util.spec_from_file_location(f"conformance_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            if name.startswith("test_"):
                mark = (lambda test: test) if name in EVERYWHERE else pytest.mark.proof(0.5)
                yield f"{path.stem}_{name.removeprefix('test_')}", mark(value)


globals().update(scenarios())


@pytest.fixture(scope="module")
def wide(ray_here, tmp_path_factory):
    """A cluster of one large machine: the suite is about sandboxes, not about room."""

    agent = machine(tmp_path_factory.mktemp("wide"), memory_mb=100_000)
    launched = asyncio.run(launch("wide", agent, serving()))
    assert len(launched.agents) == 1 and asyncio.run(launched.add_machines()) == []
    yield
    asyncio.run(launched.close())


@pytest.fixture
def run(wide):
    return lambda scenario, deadline_s=60.0: within(
        deadline_s, lambda: open_backend(ClusterConfig(name="wide")), scenario
    )

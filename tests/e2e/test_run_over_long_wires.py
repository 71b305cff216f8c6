"""A run over machines that are far from each other: every frame takes 20 ms from one to the next, and 2% are lost."""

import subprocess

import pytest
from machines import Machines
from test_bare_cluster import Cluster
from test_run_over_machines import OFFERED, goes_on_when_cut

pytestmark = pytest.mark.timeout(900)
WIRE = {"delay_ms": 10.0, "loss": 0.01}
"""Of each machine's wire to the bridge: a frame goes over two of them."""


@pytest.fixture
def cluster(tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    with Machines(3, tmp_path_factory.mktemp("machines"), shared=(shared,), **WIRE) as machines:
        cluster = Cluster(machines, OFFERED)
        cluster.shared = shared
        cluster.did("up")
        yield cluster


def sent_again(machines, address):
    """How many segments TCP has sent again there: the wires do lose frames."""
    read = [*machines.there(address), "cat", "/proc/net/snmp"]
    told = subprocess.run(read, capture_output=True, text=True, check=True, timeout=60).stdout
    names, values = (line.split() for line in told.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


@pytest.mark.proof(75)
def test_a_run_over_long_wires_loses_nothing(cluster):
    """Nor where one of them is out for a while."""
    goes_on_when_cut(cluster, cluster.shared / "far", 5.0, 4)
    assert all(sent_again(cluster.machines, address) for address in cluster.machines.addresses)

"""Several clusters: the less loaded of two, snapshots' own, none that is down, and the same id the same way."""

import pytest
from scheduling_nodes import Cluster, request

from etude.environments.scheduling.queues import QueueConfig
from etude.environments.scheduling.router import Router
from etude.errors import ConfigError, SandboxError


def clusters(count, **more):
    made = {f"c{i}": Cluster(nodes=2, **more) for i in range(count)}
    return made, Router({name: cluster.scheduler for name, cluster in made.items()})


def test_load_is_spread_and_an_id_stays_where_it_is():
    made, router = clusters(3)
    where = {f"r{i}": router.submit(request(f"r{i}"), 0.0)[0] for i in range(30)}
    assert sorted(where.values()).count("c0") in range(6, 15) and len(set(where.values())) == 3
    assert all(router.submit(request(name), 0.0)[0] == cluster for name, cluster in where.items())
    assert sum(cluster.scheduler.ledger.submitted for cluster in made.values()) == 30
    assert router.cluster_of("r3") is made[where["r3"]].scheduler
    with pytest.raises(SandboxError, match="no request nobody"):
        router.cluster_of("nobody")


def test_a_fork_goes_where_its_snapshot_is():
    made, router = clusters(4)
    made["c2"].nodes["n0"].holds.add("snapshot/s")
    made["c2"].beat()
    assert {router.submit(request(f"f{i}", snapshot="s"), 0.0)[0] for i in range(10)} == {"c2"}


def test_a_cluster_that_would_refuse_or_is_down_is_passed_over():
    made, router = clusters(2, queues=QueueConfig(limits={"interactive": 3, "training": 3}, tenant_part=1.0))
    router.set_up("c0", False)
    assert {router.submit(request(f"a{i}"), 0.0)[0] for i in range(3)} == {"c1"}
    assert router.submit(request("refused"), 0.0)[1].state == "refused"
    router.set_up("c0", True)
    assert {router.submit(request(f"b{i}"), 0.0)[0] for i in range(2)} == {"c0"}
    assert router.submit(request("refused"), 0.0) == ("c0", made["c0"].scheduler.ledger.tickets["refused"])
    router.set_up("c0", False)
    router.set_up("c1", False)
    with pytest.raises(SandboxError, match="c0, c1"):
        router.submit(request("z"), 0.0)


def test_a_router_without_clusters_is_a_wrong_config():
    with pytest.raises(ConfigError):
        Router({})

"""Where snapshots are not moved, what starts from one waits for its holder, and keeps nobody else waiting."""

from scheduling_nodes import Cluster, places, request

from etude.environments.scheduling.messages import snapshot_key


def holding(**config):
    """Two nodes of two places each; n0 holds the snapshot `s` and is full."""
    cluster = Cluster(nodes=0, snapshots_move=False, **config)
    cluster.add("n0", memory_mb=512, holds=[snapshot_key("s")])
    cluster.submit(request("x"), request("y"))
    cluster.settle()
    cluster.add("n1", memory_mb=512)
    return cluster


def test_a_fork_waits_for_its_holder_and_others_of_its_needs_do_not():
    cluster = holding()
    cluster.submit(request("fork", snapshot="s"), request("other"))
    cluster.settle()
    assert (cluster.state("fork"), cluster.state("other")) == ("queued", "ready")
    assert cluster.node_of("other") == "n1"
    cluster.scheduler.end("x", cluster.now)
    cluster.settle()
    assert cluster.state("fork") == "ready" and cluster.node_of("fork") == "n0"
    cluster.scheduler.check()


def test_a_fork_that_has_waited_long_has_its_holder_kept_for_it():
    cluster = holding(claim_after_s=5.0)
    cluster.submit(request("fork", memory_mb=512, snapshot="s"))
    cluster.pass_time(6.0)
    assert cluster.scheduler.totals["claims"] == 1
    cluster.scheduler.end("x", cluster.now)
    cluster.submit(request("small", snapshot="s"))
    cluster.settle()
    assert (cluster.state("fork"), cluster.state("small")) == ("queued", "queued")
    cluster.scheduler.end("y", cluster.now)
    cluster.settle()
    assert cluster.state("fork") == "ready" and cluster.node_of("fork") == "n0"


def test_a_fork_of_what_died_with_its_node_fails_at_once():
    cluster = holding()
    cluster.pass_time(16.0, silent=["n0"])
    cluster.submit(request("fork", snapshot="s"))
    assert places(cluster.decide()) == []
    assert cluster.state("fork") == "failed"


def test_a_fork_that_waits_is_told_when_its_snapshot_is_gone():
    cluster = holding()
    cluster.submit(request("fork", snapshot="s"))
    cluster.settle()
    assert cluster.state("fork") == "queued"
    cluster.nodes["n0"].holds.clear()
    cluster.beat()
    cluster.settle()
    assert cluster.state("fork") == "failed"
    cluster.scheduler.check()

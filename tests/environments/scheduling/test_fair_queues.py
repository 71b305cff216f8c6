"""Whose turn it is: fair shares, classes, bounded queues, and a line people can read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_nodes import Cluster, places, request

from etude.environments.scheduling.headroom import Shape
from etude.environments.scheduling.queues import FairShares, QueueConfig
from etude.errors import Overloaded


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    st.sampled_from([64, 192]),
    st.randoms(use_true_random=False),
)
def test_weighted_shares_converge_whatever_ends(weighed, memory_mb, rng):
    """All tenants always want more; sandboxes end at random; shares over weights come within two sandboxes.

    (Of one size: where sizes differ, a small one may take a gap that none of a larger one's could.)
    """
    weights = {f"t{i}": weight for i, weight in enumerate(weighed)}
    cluster = Cluster(nodes=4, memory_mb=4096, cpus=64, queues=QueueConfig(weights=weights))
    for tenant in weights:
        cluster.submit(*(request(f"{tenant}.{k}", memory_mb, 0.25, tenant=tenant) for k in range(450)))
    cluster.settle()
    for _ in range(100):
        ready = sorted(order.request.id for node in cluster.nodes.values() for order in node.alive.values())
        cluster.scheduler.end(rng.choice(ready), cluster.now)
        cluster.settle()
    shares = cluster.scheduler.queues.shares
    assert all(cluster.scheduler.queues.classes["training"].tenants[tenant] > 0 for tenant in weights)
    levels = [shares.of(tenant) for tenant in weights]
    assert max(levels) - min(levels) <= 2.0 * memory_mb / 16384 / min(weighed)


def test_the_dominant_share_is_of_the_scarcest_resource():
    shares = FairShares({"b": 2.0})
    shares.resize([100, 10, 1000])
    shares.add("a", Shape(10, 4, 10, None, None), 1)
    shares.add("b", Shape(10, 4, 900, None, None), 1)
    assert shares.of("a") == pytest.approx(0.4) and shares.of("b") == pytest.approx(0.45)
    shares.add("a", Shape(10, 4, 10, None, None), -1)
    assert shares.of("a") == 0.0


def test_a_tenant_that_comes_late_is_served_before_one_that_holds_much():
    cluster = Cluster(nodes=1, memory_mb=1024, cpus=64)
    cluster.submit(*(request(f"many{i}", tenant="many") for i in range(20)))
    cluster.settle()
    cluster.submit(request("late", tenant="late"))
    cluster.scheduler.end("many0", cluster.now)
    cluster.settle()
    assert cluster.state("late") == "ready" and cluster.state("many4") == "queued"


def test_interactive_goes_before_training_which_gets_its_turn_when_it_has_waited():
    queues = QueueConfig(training_patience_s=10.0, training_turn=4)
    cluster = Cluster(nodes=1, memory_mb=256, queues=queues)
    cluster.submit(request("first"))
    cluster.settle()
    cluster.submit(*(request(f"t{i}") for i in range(10)))
    cluster.submit(*(request(f"i{i}", priority="interactive") for i in range(40)))
    served = ["first"]

    def serve(count):
        for _ in range(count):
            cluster.scheduler.end(served[-1], cluster.now)
            cluster.decide()
            [order] = places(cluster.decide())
            served.append(order.request.id)
            cluster.start_all()

    serve(6)
    assert all(name.startswith("i") for name in served[1:])
    cluster.now += 11.0
    cluster.beat()
    serve(12)
    assert [name[0] for name in served[7:]].count("t") == 3
    assert all("t" in {name[0] for name in served[at : at + 4]} for at in range(7, 16))


def test_a_full_queue_refuses_and_says_when_to_ask_again():
    limits = {"interactive": 2, "training": 10}
    cluster = Cluster(nodes=1, memory_mb=256, queues=QueueConfig(limits=limits, tenant_part=0.5))
    cluster.submit(*(request(f"a{i}", tenant="a") for i in range(6)))
    assert cluster.state("a5") == "refused" and "requests of a wait" in cluster.scheduler.ledger.tickets["a5"].why
    cluster.submit(*(request(f"b{i}", tenant="b") for i in range(5)), request("c", tenant="c"))
    assert cluster.state("b4") == "queued"
    ticket = cluster.scheduler.ledger.tickets["c"]
    error = ticket.refusal.error()
    assert isinstance(error, Overloaded) and 1.0 <= error.retry_after_s <= 300.0
    cluster.submit(request("i", priority="interactive"))
    assert cluster.state("i") == "queued"  # a class of its own
    for name in ("a0", "a1"):
        cluster.scheduler.end(name, cluster.now, "cancelled")
    cluster.submit(request("c", tenant="c"))
    assert cluster.state("c") == "queued"
    cluster.scheduler.check()


def test_the_same_id_again_is_the_same_request():
    cluster = Cluster(nodes=1)
    [ticket] = cluster.submit(request("r"))
    cluster.settle()
    assert cluster.submit(request("r")) == [ticket]
    assert len(cluster.nodes["n0"].alive) == 1 and cluster.scheduler.ledger.submitted == 1


def test_the_line_says_where_one_stands_since_when_and_why():
    cluster = Cluster(nodes=1, memory_mb=256)
    cluster.submit(request("on"))
    cluster.settle()
    for tenant, count in (("a", 3), ("b", 2)):
        cluster.submit(*(request(f"{tenant}{i}", tenant=tenant) for i in range(count)))
    cluster.now = 2.0
    cluster.decide()
    line = cluster.scheduler.waiting("training", cluster.now)
    assert [(entry.request, entry.position) for entry in line] == [
        ("a0", 0),
        ("b0", 0),
        ("a1", 2),
        ("b1", 2),
        ("a2", 4),
    ]
    assert {entry.waiting_s for entry in line} == {2.0}
    assert all("256 MiB" in entry.why or "not full" in entry.why for entry in line)
    assert cluster.scheduler.waiting_for("a1", cluster.now) == line[2]
    assert cluster.scheduler.waiting("training", cluster.now, limit=2) == line[:2]
    assert cluster.scheduler.waiting_for("on", cluster.now) is None


def test_a_wait_has_an_end():
    queues = QueueConfig(patience_s={"interactive": 5.0, "training": 50.0})
    cluster = Cluster(nodes=1, memory_mb=256, queues=queues)
    cluster.submit(request("on"))
    cluster.settle()
    cluster.submit(request("i", priority="interactive"), request("t"))
    cluster.pass_time(6.0)
    failure = cluster.scheduler.ledger.tickets["i"].failure
    assert failure.retryable and "in the queue" in failure.what
    assert cluster.state("t") == "queued"


def test_a_large_request_is_not_overtaken_for_ever():
    """Small ones fill each gap as it opens; after `claim_after_s` a node is kept for the large one."""
    cluster = Cluster(nodes=2, memory_mb=1024, cpus=64, claim_after_s=5.0)
    cluster.submit(*(request(f"s{i}", ttl_s=3.0 + i % 4) for i in range(400)))
    cluster.settle()
    cluster.submit(request("large", memory_mb=1024, tenant="large"))
    cluster.pass_time(4.0)
    assert cluster.state("large") == "queued"
    cluster.pass_time(8.0)
    assert cluster.state("large") == "ready" and cluster.scheduler.totals["claims"] == 1
    assert cluster.scheduler.queues.classes["training"].length > 0
    cluster.pass_time(4.0)
    assert all(node.claim is None for node in cluster.scheduler.fleet.nodes.values())


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from([64, 256, 512, 1024]), st.sampled_from("abc"), st.booleans(), st.integers(1, 6)),
        max_size=40,
    )
)
def test_nobody_starves(wanted):
    cluster = Cluster(nodes=2, memory_mb=1024, cpus=8, claim_after_s=4.0)
    for i, (memory_mb, tenant, urgent, ttl_s) in enumerate(wanted):
        priority = "interactive" if urgent else "training"
        cluster.submit(request(f"r{i}", memory_mb, tenant=tenant, priority=priority, ttl_s=float(ttl_s)))
    cluster.settle()
    cluster.pass_time(12.0 * (1 + len(wanted)))
    assert all(cluster.state(f"r{i}") == "ended" for i in range(len(wanted)))
    assert cluster.scheduler.fleet.reserved_memory == 0

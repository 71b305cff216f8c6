"""Where sandboxes go: packed, within memory, away from pressure, to their snapshots and images."""

from scheduling_nodes import NAMESPACE, VM, Cluster, places, request

from etude.environments.scheduling.messages import Fetch, Pressure


def test_the_fuller_node_is_filled_before_the_empty_one_is_opened():
    cluster = Cluster(nodes=4, memory_mb=1024)
    for i in range(8):
        cluster.submit(request(f"r{i}"))
        cluster.settle()
    used = sorted(node.used_mb for node in cluster.nodes.values())
    assert used == [0, 0, 1024, 1024]


def test_cpu_is_promised_more_than_once_and_memory_is_not():
    cluster = Cluster(nodes=1, memory_mb=1024, cpus=1.0)
    cluster.submit(*(request(f"r{i}", memory_mb=128, cpus=1.0) for i in range(6)))
    cluster.settle()
    assert cluster.scheduler.ledger.counts["ready"] == 4  # 4 x 1 CPU over-committed; memory for 8
    big = Cluster(nodes=1, memory_mb=1024, cpus=64.0)
    big.submit(*(request(f"r{i}", memory_mb=300) for i in range(6)))
    big.settle()
    assert big.scheduler.ledger.counts["ready"] == 3
    assert "320 MiB of memory" in big.scheduler.waiting("training", 0.0)[0].why


def test_isolation_is_never_weakened():
    cluster = Cluster(nodes=3, offers=NAMESPACE)
    [ticket] = cluster.submit(request("r", isolation="vm"))
    assert cluster.state("r") == "refused" and ticket.refusal.retry_after_s is None
    assert "vm" in str(ticket.refusal.error())
    cluster.add("v", offers=VM)
    cluster.submit(request("r", isolation="vm"))
    cluster.settle()
    assert cluster.node_of("r") == "v"


def test_a_named_backend_is_the_one_used():
    cluster = Cluster(nodes=1, offers=(*NAMESPACE, *VM))
    cluster.submit(request("v", backend="qemu"), request("n", isolation="namespace"))
    orders = {order.request.id: order.backend for order in places(cluster.decide()) if not order.warm}
    assert orders == {"v": "qemu", "n": "namespace"}


def test_a_fork_goes_to_its_snapshot_and_takes_it_along_when_there_is_no_room():
    cluster = Cluster(nodes=5, memory_mb=512)
    cluster.nodes["n3"].holds.add("snapshot/s")
    cluster.beat()
    cluster.submit(*(request(f"f{i}", snapshot="s") for i in range(3)))
    orders = places(cluster.decide())
    assert [order.node for order in orders[:2]] == ["n3", "n3"]
    assert {order.action for order in orders} == {"fork"}
    assert orders[2].node != "n3" and orders[2].fetch == (Fetch("snapshot/s", "n3"),)


def test_forks_wait_for_a_slot_at_home_until_that_is_slower_than_moving():
    cluster = Cluster(nodes=0)
    home = cluster.add("home", memory_mb=65536, cpus=64, start_slots=2, holds=["snapshot/s"])
    cluster.add("away", memory_mb=65536, cpus=64, start_slots=2)
    cluster.submit(*(request(f"f{i}", snapshot="s") for i in range(100)))
    first = places(cluster.decide())
    at_home = sum(order.node == "home" for order in first)
    # a start takes 0.05 s until shown otherwise, two at once; moving takes 1 s: twenty rounds of two are worth waiting
    assert at_home == 40 and len(first) == 42
    assert {order.node for order in first} == {"home", "away"}
    assert len(home.starting) == at_home


def test_a_snapshot_nobody_holds_comes_from_the_store_or_is_a_failure_that_no_retry_mends():
    cluster = Cluster(nodes=2)
    cluster.submit(request("stored", snapshot="s", snapshot_stored=True), request("lost", snapshot="s"))
    [order] = places(cluster.decide())
    assert order.request.id == "stored" and order.fetch == (Fetch("snapshot/s", None),)
    ticket = cluster.scheduler.ledger.tickets["lost"]
    assert cluster.state("lost") == "failed" and not ticket.failure.retryable and "no node holds" in ticket.failure.what


def test_an_image_is_used_where_it_is():
    cluster = Cluster(nodes=30)
    cluster.nodes["n17"].holds.add("image/py")
    cluster.beat()
    cluster.submit(request("r", image="py"))
    [order] = places(cluster.decide())
    assert order.node == "n17" and order.fetch == ()


def test_a_node_under_pressure_is_left_alone_until_it_has_cooled():
    cluster = Cluster(nodes=1)
    node = cluster.nodes["n0"]
    node.beat(Pressure(memory_full=6.0))
    cluster.submit(request("r"))
    assert cluster.decide() == []
    assert "under pressure" in cluster.scheduler.waiting_for("r", cluster.now).why
    node.beat(Pressure(memory_full=4.5))  # below the limit of 5, not yet well below
    assert cluster.decide() == []
    node.beat(Pressure(memory_full=3.0))
    assert len(places(cluster.decide())) == 1


def test_a_draining_node_keeps_what_it_has_and_gets_nothing():
    cluster = Cluster(nodes=1)
    cluster.submit(request("r"))
    cluster.settle()
    cluster.beat(draining=True)
    cluster.submit(request("s"))
    cluster.settle()
    assert (cluster.state("r"), cluster.state("s")) == ("ready", "queued")


def test_starts_are_spread_by_the_slots_of_a_node():
    cluster = Cluster(nodes=4, memory_mb=65536, cpus=64, start_slots=3)
    cluster.submit(*(request(f"r{i}") for i in range(20)))
    cluster.decide()
    assert sorted(len(node.starting) for node in cluster.nodes.values()) == [3, 3, 3, 3]


def test_a_slow_node_is_passed_over_while_another_has_room():
    cluster = Cluster(nodes=2, memory_mb=65536, cpus=64)
    cluster.submit(request("r"))
    cluster.decide()
    slow = cluster.node_of("r")
    cluster.now += 20.0
    cluster.start_all()
    cluster.beat()
    cluster.submit(request("s"))
    [order] = places(cluster.decide())
    assert order.node != slow


def test_a_node_whose_tasks_wait_for_a_cpu_is_passed_over_while_another_has_room():
    cluster = Cluster(nodes=2, memory_mb=65536, cpus=64)
    cluster.submit(request("r"))
    cluster.settle()
    fuller = cluster.node_of("r")
    for node in cluster.nodes.values():
        cluster.scheduler.fleet.nodes[node.name].start_s = 1.0
        node.beat(Pressure(cpu_some=60.0 if node.name == fuller else 0.0))
    cluster.submit(request("s"))
    [order] = places(cluster.decide())
    assert order.node != fuller


def test_a_start_that_fetched_says_nothing_of_its_nodes_pace():
    cluster = Cluster(nodes=1)
    cluster.submit(request("r", image="py"))
    [order] = places(cluster.decide())
    assert order.fetch == (Fetch("image/py", None),)
    cluster.now += 2.5
    cluster.start_all()
    assert cluster.scheduler.fleet.nodes["n0"].start_s == cluster.scheduler.config.fleet.first_start_s


def test_among_nodes_with_the_image_the_fuller_is_taken():
    cluster = Cluster(nodes=20)
    for name in ("n4", "n9", "n14"):
        cluster.nodes[name].holds.add("image/py")
    cluster.beat()
    used = set()
    for i in range(4):
        cluster.submit(request(f"r{i}", image="py"))
        cluster.settle()
        used.add(cluster.node_of(f"r{i}"))
    assert len(used) == 1


def test_a_failed_start_is_tried_elsewhere_and_named_when_tries_run_out():
    cluster = Cluster(nodes=3)
    cluster.submit(request("r"))
    seen = []
    for _ in range(3):
        [order] = places(cluster.decide())
        seen.append(order.node)
        cluster.nodes[order.node].start(order.sandbox, failed="no agent")
    assert sorted(seen) == ["n0", "n1", "n2"]
    failure = cluster.scheduler.ledger.tickets["r"].failure
    assert cluster.state("r") == "failed" and failure.retryable and "no agent" in failure.what
    assert all(node.free_memory == node.memory for node in cluster.scheduler.fleet.nodes.values())

"""Warm VMs: as many as arrivals need, handed out, never in the way, gone when nobody comes."""

import math

import pytest
from scheduling_nodes import VM, Cluster, kills, places, request

from etude.environments.scheduling.headroom import shape_of
from etude.environments.scheduling.messages import Offer
from etude.environments.scheduling.warm import Pool, Rate, WarmConfig


def vms(**more):
    return Cluster(nodes=2, memory_mb=8192, cpus=64, offers=VM, **more)


def test_a_rate_fades_with_its_window():
    rate = Rate(10.0)
    for second in range(100):
        rate.add(float(second))
    assert rate.at(99.0) == pytest.approx(1.0, rel=0.06)
    assert rate.at(109.0) == pytest.approx(rate.at(99.0) / math.e)


def test_the_size_is_littles_law_and_two_roots():
    config = WarmConfig(rate_window_s=1.0)
    pattern = request("p", isolation="vm")
    pool = Pool(pattern, shape_of(pattern, 64), Rate(1.0), boot_s=2.0)
    pool.rate.add(0.0, 8)  # 8 a second x 2 s = 16 on the way; and 2 roots of 16
    assert pool.desired(0.0, config) == 24
    assert pool.desired(30.0, config) == 0
    assert pool.desired(0.0, WarmConfig(max_size=5)) == 5


def test_a_warm_vm_is_booted_ahead_and_handed_out():
    cluster = vms()
    cluster.submit(request("first", isolation="vm"))
    cluster.settle()
    warm = {order.sandbox for order in places(cluster.commands) if order.warm}
    assert warm and cluster.scheduler.gauges()["warm_idle"] == len(warm)
    cluster.submit(request("second", isolation="vm"))
    [order] = [order for order in places(cluster.decide()) if order.request.id == "second"]
    assert order.action == "resume" and order.sandbox in warm
    cluster.beat()  # that it exists does not say it has been resumed
    assert cluster.state("second") == "placing"
    cluster.start_all()
    assert cluster.state("second") == "ready" and cluster.scheduler.totals["handed_out"] == 1
    cluster.scheduler.end("second", cluster.now)
    cluster.settle()
    cluster.scheduler.check()


def test_the_newest_is_handed_out_so_that_the_oldest_expire():
    cluster = vms()
    cluster.submit(*(request(f"r{i}", isolation="vm") for i in range(40)))
    cluster.settle()
    [pool] = cluster.scheduler.warm.pools.values()
    oldest, newest = pool.idle[0].id, pool.idle[-1].id
    assert oldest != newest
    cluster.submit(request("next", isolation="vm"))
    cluster.decide()
    assert cluster.scheduler.ledger.tickets["next"].lease.id == newest


def test_namespaces_and_other_kinds_get_none():
    cluster = vms()
    cluster.submit(request("v", isolation="vm"))
    cluster.settle()
    cluster.submit(request("bigger", memory_mb=512, isolation="vm"), request("any"))
    orders = {order.request.id: order.action for order in places(cluster.decide())}
    assert orders["bigger"] == "create" and orders["any"] == "create"
    assert len(cluster.scheduler.warm.pools) == 2


def test_a_warm_vm_makes_way_for_a_request_without_room():
    cluster = Cluster(nodes=1, memory_mb=512, cpus=64, offers=VM)
    cluster.submit(request("v", isolation="vm"))
    cluster.settle()
    assert cluster.scheduler.gauges()["warm_idle"] == 1
    cluster.submit(request("w", isolation="vm", image="other"))
    commands = cluster.decide()
    assert [kill.why for kill in kills(commands)] == ["its room is needed"]
    cluster.settle()
    assert cluster.state("w") == "ready" and cluster.scheduler.gauges()["warm_idle"] == 0


def test_nothing_is_kept_warm_in_room_that_others_wait_for():
    cluster = Cluster(nodes=1, memory_mb=512, cpus=64, offers=(Offer("namespace", "namespace"), *VM))
    cluster.submit(
        request("on", memory_mb=448), request("large", memory_mb=128), request("v", memory_mb=64, isolation="vm")
    )
    cluster.settle()
    cluster.scheduler.end("v", cluster.now)
    cluster.settle()
    cluster.pass_time(10.0)
    assert cluster.state("large") == "queued" and cluster.scheduler.totals["warm_boots"] == 0


def test_nobody_comes_and_they_go():
    cluster = vms()
    cluster.submit(request("v", isolation="vm"))
    cluster.settle()
    cluster.scheduler.end("v", cluster.now)
    cluster.pass_time(200.0, step=2.0)
    assert cluster.scheduler.gauges()["warm_idle"] == 0 and cluster.scheduler.fleet.reserved_memory == 0
    assert not any(node.alive for node in cluster.nodes.values())


def test_warm_ones_die_with_their_node_and_are_not_handed_out():
    cluster = vms()
    cluster.submit(request("v", isolation="vm"))
    cluster.settle()
    [pool] = cluster.scheduler.warm.pools.values()
    home = pool.idle[0].node.name
    cluster.pass_time(4.0, silent=[home])
    cluster.submit(request("w", isolation="vm"))
    cluster.settle(deaf=[home])
    assert cluster.node_of("w") != home
    cluster.pass_time(14.0, silent=[home])
    assert all(lease.node.name != home for lease in pool.idle)
    cluster.scheduler.check()


def test_pools_are_bounded_and_unused_ones_make_way():
    cluster = vms(warm=WarmConfig(max_pools=2))
    cluster.submit(*(request(f"r{i}", isolation="vm", image=f"i{i}") for i in range(4)))
    assert [image for _, image in cluster.scheduler.warm.pools] == ["i0", "i1"]
    cluster.now = 1000.0
    cluster.submit(request("late", isolation="vm", image="late"))
    assert [image for _, image in cluster.scheduler.warm.pools] == ["i1", "late"]

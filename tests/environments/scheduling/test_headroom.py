"""The index of nodes by room: it finds what fits, tightest first, and forgets nothing as nodes change."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.environments.base import Resources
from etude.environments.scheduling.fleet import Fleet, FleetConfig, Lease
from etude.environments.scheduling.headroom import RandomSet, shape_of
from etude.environments.scheduling.messages import Hello, Offer, Request

OFFERS = [
    (Offer("namespace", "namespace"),),
    (Offer("qemu", "vm"),),
    (Offer("namespace", "namespace"), Offer("qemu", "vm")),
]
node_rooms = st.tuples(
    st.integers(1, 4096), st.sampled_from([0.5, 1.0, 3.0, 8.0]), st.integers(64, 4096), st.sampled_from(OFFERS)
)
needs = st.tuples(
    st.integers(1, 2048),
    st.sampled_from([0.1, 0.25, 1.0, 1.5, 6.0]),
    st.integers(1, 2048),
    st.sampled_from([None, "namespace", "vm"]),
)


def fleet_of(rooms):
    fleet = Fleet(FleetConfig(cpu_overcommit=2.0))
    for i, (memory_mb, cpus, disk_mb, offers) in enumerate(rooms):
        fleet.join(Hello(f"n{i}", 1, 1, Resources(memory_mb, 0, cpus, disk_mb), offers, start_slots=1000), 0.0)
    return fleet


def shape(memory_mb, cpus, disk_mb, isolation):
    return shape_of(Request("r", "t", resources=Resources(memory_mb, 0, cpus, disk_mb), isolation=isolation), 64)


@given(st.lists(node_rooms, min_size=1, max_size=12), st.lists(needs, min_size=1, max_size=25), st.integers())
def test_the_walk_meets_every_node_that_fits_tightest_first(rooms, wanted, seed):
    fleet, rng = fleet_of(rooms), Random(seed)
    for i, need in enumerate(wanted):
        sought = shape(*need)
        met = list(fleet.headroom.walk(sought, rng))
        fitting = {node.name for node in fleet.nodes.values() if node.fits(sought) and sought.backend_of(node.offers)}
        assert fitting <= {node.name for node in met}
        assert len(met) == len({node.name for node in met})
        assert all(sought.backend_of(node.offers) and node.free_memory >= sought.memory for node in met)
        assert [node.free_memory for node in met] == sorted(node.free_memory for node in met)
        if fitting:
            node = next(node for node in met if node.name in fitting)
            fleet.reserve(Lease(f"s{i}", node, sought, 0.0))
        if i % 3 == 2 and fleet.leases:
            fleet.release(next(iter(fleet.leases.values())))
    fleet.check()


def test_needs_are_rounded_up_and_capacity_down():
    assert shape(65, 0.3, 1, None)[:3] == (2, 2, 1)
    fleet = fleet_of([(127, 1.0, 200, OFFERS[0])])
    assert (fleet.nodes["n0"].memory, fleet.nodes["n0"].cpus, fleet.nodes["n0"].disk) == (1, 8, 3)


def test_a_reservation_beyond_the_memory_is_refused():
    fleet = fleet_of([(128, 8.0, 4096, OFFERS[0])])
    fleet.reserve(Lease("a", fleet.nodes["n0"], shape(128, 0.25, 1, None), 0.0))
    with pytest.raises(Exception, match="no room"):
        fleet.reserve(Lease("b", fleet.nodes["n0"], shape(64, 0.25, 1, None), 0.0))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60), st.integers())
def test_a_bag_is_a_set_walked_once_round(changes, seed):
    nodes, model = RandomSet(), set()
    for add, item in changes:
        (nodes.add if add else nodes.discard)(item)
        (model.add if add else model.discard)(item)
    walked = list(nodes.walk(Random(seed)))
    assert sorted(walked) == sorted(model) and len(nodes) == len(model)

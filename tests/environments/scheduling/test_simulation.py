"""The simulation: nothing is lost while nodes die, fall silent and lag; it is the same again with the same seed."""

import sys
import time
from pathlib import Path

import pytest
from scheduling_nodes import NAMESPACE

from etude.environments.base import Resources
from etude.environments.scheduling.messages import Hello
from etude.errors import EtudeError

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from scheduler_simulation import Latency, Simulation, SimulationConfig

SMALL = {"nodes": 12, "sandboxes": 1000, "snapshots": 12, "lifetime": Latency(p50_s=5.0, p99_s=15.0)}
ROUGH = {"dying_nodes": 0.25, "silent_nodes": 0.25, "failing_starts": 0.05, "straggling_nodes": 0.1}


def run(**more):
    return Simulation(SimulationConfig(**(SMALL | more))).run()


def test_nothing_is_lost_when_a_quarter_dies_and_a_quarter_falls_silent():
    report = run(**ROUGH)
    assert report.lost == 0 and report.outcomes["done"] == 1000
    assert report.totals["nodes_died"] >= 3 and report.totals["retries"] > 0
    assert report.totals["placements"] > 1000
    assert 0.0 < report.ready_percentile(50) < report.ready_percentile(99)


def test_one_seed_one_history_whatever_the_clock():
    first = run(**ROUGH)
    assert run(**ROUGH).history == first.history
    assert Simulation(SimulationConfig(**SMALL, **ROUGH), clock=time.perf_counter).run().history == first.history
    assert run(**ROUGH, seed=1).history != first.history


def test_vms_are_simulated_too_with_warm_ones_for_those_who_come_later():
    report = run(profile="qemu-tcg", sandboxes=300, arrive_over_s=30.0, image_part=0.0)
    assert report.lost == 0 and report.totals["handed_out"] > 0
    assert report.ready_percentile(1) < 0.5  # a resume, not a boot of two seconds


def test_more_than_fits_waits_its_turn():
    report = run(nodes=4, sandboxes=1000, dying_nodes=0.0)
    assert report.lost == 0 and report.outcomes == {"done": 1000}
    assert report.packing > 0.95  # 4 nodes hold about half of them


def test_times_follow_the_percentiles_they_were_given():
    from random import Random

    rng = Random(0)
    drawn = sorted(Latency(p50_s=2.0, p99_s=6.0).draw(rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(2.0, rel=0.05) and drawn[19_800] == pytest.approx(6.0, rel=0.1)


def test_a_node_that_is_given_too_much_says_so():
    """The simulation's own check of memory, tried with a node that is smaller than it told the scheduler."""
    simulation = Simulation(SimulationConfig(**SMALL, dying_nodes=0.0))
    for node in simulation.nodes.values():
        node.resources = Resources(1024, 0, 32, 400_000)
        true = simulation.config.node
        simulation._hello = lambda node, true=true: Hello(
            node.name, 1, node.next_seq(), true, NAMESPACE, 8, holds=tuple(sorted(node.holds))
        )
    with pytest.raises(EtudeError, match="was given"):
        simulation.run()

"""The scheduler's own cost, and how it does with 100,000 sandboxes asked for at once on 1,000 nodes, 1% of which die.

    python benchmarks/scheduler.py [--nodes 1000] [--sandboxes 100000] [--profile namespace] [--grow-to 1000000]

Three parts. Cost: a scheduler is fed requests, starts that ended and heartbeats as fast as it takes them, and the CPU
seconds of one core are divided by placements; then all sandboxes end. Growth: the same from 1,000 sandboxes to a
million at 100 a node, and from 100 nodes to 10,000 with ten sandboxes on each; cost must grow no faster than the
logarithm. Burst: the simulation (scheduler_simulation.py says what is measured in it and what is
assumed), in which every placement takes the time the first part measured. All at once, every node must start some, so
packing is at most what is asked for over what there is (78% here); a fifth of them arriving over a minute shows how few
nodes are opened where nothing but room decides (no forks and no images, which are worth an emptier node). Garbage
collection is on throughout. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator
from random import Random
from typing import Any

from scheduler_simulation import PROFILES, Report, Simulation, SimulationConfig, draw_request, roomy

from etude.environments.scheduling.messages import (
    Ended,
    Heartbeat,
    Hello,
    KillSandbox,
    Offer,
    Placed,
    PlaceSandbox,
    Pressure,
    Request,
    image_key,
    snapshot_key,
)
from etude.environments.scheduling.scheduler import Scheduler

BATCH = 64
BEAT_EVERY = 20
"""Placements to a heartbeat: a thousand nodes report each second, while some 20,000 sandboxes are placed."""


class Fleet:
    """Nodes that do at once what they are told, and so cost nothing but the scheduler's own time."""

    def __init__(self, config: SimulationConfig) -> None:
        rng = Random(config.seed)
        self.scheduler = Scheduler(roomy(config))
        self.seq, self.now = 1, 0.0
        self.names = [f"n{i:05d}" for i in range(config.nodes)]
        profile = PROFILES[config.profile]
        held: dict[str, set[str]] = {name: set() for name in self.names}
        for i in range(config.snapshots):
            held[rng.choice(self.names)].add(snapshot_key(f"s{i}"))
        for name in self.names:
            held[name] |= {image_key(f"i{i}") for i in range(config.images) if rng.random() < config.image_on_nodes}
            offers = (Offer(profile.backend, profile.isolation),)
            holds = tuple(sorted(held[name]))
            hello = Hello(name, 1, self.seq, config.node, offers, config.start_slots, holds=holds)
            self.scheduler.hello(hello, self.now)
        self._beats = self._beating()

    def _beating(self) -> Iterator[None]:
        while True:
            for name in self.names:
                self.seq += 1
                self.scheduler.heartbeat(Heartbeat(name, 1, self.seq, Pressure(cpu=0.5, memory=0.5)), self.now)
                yield

    def place(self, requests: list[Request]) -> int:
        """Submit all, then place, start and report until all are ready. Returns how many orders that took."""
        scheduler, placements = self.scheduler, 0
        for request in requests:
            scheduler.submit(request, self.now)
        while True:
            decisions = scheduler.decide(self.now, BATCH)
            if not decisions.commands:
                return placements
            self.now += BATCH * 50e-6
            for order in decisions.commands:
                assert isinstance(order, PlaceSandbox)
                self.seq += 1
                scheduler.placed(Placed(order.node, 1, self.seq, order.sandbox), self.now)
                placements += 1
                if placements % BEAT_EVERY == 0:
                    next(self._beats)

    def end(self, requests: list[Request]) -> None:
        """End all, with their nodes' word that they have ended."""
        for request in requests:
            self.scheduler.end(request.id, self.now)
        for kill in self.scheduler.decide(self.now).commands:
            assert isinstance(kill, KillSandbox)
            self.seq += 1
            self.scheduler.ended(Ended(kill.node, 1, self.seq, kill.sandbox), self.now)


def cost(nodes: int, sandboxes: int, profile: str = "namespace") -> dict[str, float]:
    """Microseconds of CPU for a placement, and for a whole life."""
    config = SimulationConfig(nodes=nodes, sandboxes=sandboxes, profile=profile, snapshots=nodes)
    rng, fleet = Random(1), Fleet(config)
    requests = [draw_request(config, f"r{i}", rng) for i in range(sandboxes)]
    gc.collect()
    started = time.process_time()
    placements = fleet.place(requests)
    placed = time.process_time()
    if placements != sandboxes:
        raise AssertionError(f"{placements} of {sandboxes} sandboxes were placed on {nodes} nodes")
    fleet.end(requests)
    ended = time.process_time()
    fleet.scheduler.check()
    return {
        "place_us": round(1e6 * (placed - started) / placements, 2),
        "life_us": round(1e6 * (ended - started) / placements, 2),
    }


def growth(grow_to: int, profile: str) -> dict[str, Any]:
    """Cost per placement while the cluster grows tenfold at a time."""
    by_sandboxes, by_nodes = {}, {}
    sandboxes = min(1000, grow_to)
    while sandboxes <= grow_to:
        by_sandboxes[sandboxes] = cost(max(10, sandboxes // 100), sandboxes, profile)["place_us"]
        print(f"  {sandboxes:9,} sandboxes on {max(10, sandboxes // 100):6,} nodes: {by_sandboxes[sandboxes]:7.2f} us")
        sandboxes *= 10
    nodes = 100
    while nodes <= max(100, grow_to // 100):
        by_nodes[nodes] = cost(nodes, 10 * nodes, profile)["place_us"]
        print(f"  {10 * nodes:9,} sandboxes on {nodes:6,} nodes: {by_nodes[nodes]:7.2f} us")
        nodes *= 10
    return {"us_by_sandboxes": by_sandboxes, "us_by_nodes": by_nodes, "us_per_decade": slope(by_sandboxes)}


def slope(costs: dict[int, float]) -> float:
    """By how many microseconds a tenfold cluster is dearer, by least squares."""
    xs, ys = [math.log10(size) for size in costs], list(costs.values())
    if len(xs) < 2:
        return 0.0
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return round(over / sum((x - mean_x) ** 2 for x in xs), 2)


def simulate(options: argparse.Namespace, decision_s: float, **more: Any) -> Report:
    """The simulation, with the measured cost of a decision."""
    config = SimulationConfig(
        nodes=options.nodes,
        profile=options.profile,
        decision_s=decision_s,
        seed=options.seed,
        **more,
    )
    return Simulation(config, clock=time.perf_counter).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--sandboxes", type=int, default=100_000)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="namespace")
    parser.add_argument("--grow-to", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    one = cost(options.nodes, options.sandboxes, options.profile)
    print(f"{options.sandboxes:,} sandboxes on {options.nodes:,} nodes, on one core:")
    print(
        f"  {one['place_us']:.1f} us a placement, {1e6 / one['place_us']:,.0f} a second; {one['life_us']:.1f} us a life"
    )
    print("growth:")
    grown = growth(options.grow_to, options.profile)
    print(f"  {grown['us_per_decade']:+.2f} us for each tenfold")
    report = simulate(options, one["place_us"] * 1e-6, sandboxes=options.sandboxes)
    p50, p99 = report.ready_percentile(50), report.ready_percentile(99)
    print(f"all at once, {options.profile}, simulated:")
    print(
        f"  ready after {p50:.2f} s (p50) and {p99:.2f} s (p99); memory used on busy nodes {100 * report.packing:.1f}%"
    )
    print(f"  outcomes {report.outcomes}; {report.totals}; lost {report.lost}")
    fifth = max(1, options.sandboxes // 5)
    calm = simulate(options, one["place_us"] * 1e-6, sandboxes=fifth, arrive_over_s=60.0, fork_part=0.0, image_part=0.0)
    print(f"a fifth arriving over a minute: memory used on busy nodes {100 * calm.packing:.1f}%; lost {calm.lost}")
    figures = {
        "nodes": options.nodes,
        "sandboxes": options.sandboxes,
        "profile": options.profile,
        "placements_per_s": round(1e6 / one["place_us"]),
        "lives_per_s": round(1e6 / one["life_us"]),
        "ready_s_p50": round(p50, 4),
        "ready_s_p99": round(p99, 4),
        "packing": round(report.packing, 4),
        "packing_arriving": round(calm.packing, 4),
        "lost": report.lost + calm.lost,
        "outcomes": report.outcomes,
        "totals": report.totals,
        "simulated_placements_per_s": round(report.placements / report.cpu_s),
        "simulated_s": round(report.simulated_s, 1),
        **grown,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

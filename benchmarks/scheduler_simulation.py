"""The scheduler that runs in production, under a simulated clock, network and fleet.

Owns `Simulation`: a discrete-event simulation whose nodes start sandboxes after times drawn from measured
distributions, die, fall silent and come back, lag, and fail starts, and whose clients ask, wait, use, end, and ask
again after a retryable failure. Only those are made up; every decision is the real `Scheduler`'s. The simulation keeps
books of its own, on the nodes' and the clients' side, so a request the scheduler lost, a sandbox it forgot or memory it
promised twice is seen from outside.

The scheduler has one core: each placement keeps it busy for `decision_s` of simulated time, so time to ready includes
standing in its line. One seed gives one history. Reads no clock; whoever wants the real cost passes one in.

Times are lognormal through a median and a 99th percentile. Medians are measured (a namespace create 20 ms at 100 alive
and 35 ms at 1,000; a fork 30 ms; a VM's boot 2.0 s and its restore 150 ms under TCG, 1.9 s the slowest of 60). Tails
nobody measured are taken as three times the median, and fetching an image or snapshot as the figures below.
"""

from __future__ import annotations

import heapq
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from etude.config import Config
from etude.environments.base import Resources
from etude.environments.scheduling.ledger import FINAL, State
from etude.environments.scheduling.messages import (
    AskHello,
    Command,
    Ended,
    Heartbeat,
    Hello,
    Isolation,
    KillSandbox,
    Notice,
    Offer,
    Placed,
    PlaceSandbox,
    Pressure,
    Priority,
    Request,
    image_key,
    snapshot_key,
)
from etude.environments.scheduling.queues import QueueConfig
from etude.environments.scheduling.scheduler import Scheduler, SchedulerConfig
from etude.errors import DeadlineExceeded, EtudeError

Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


class Latency(Config):
    """A lognormal time through two percentiles."""

    p50_s: float
    p99_s: float

    def draw(self, rng: Random) -> float:
        return self.p50_s * math.exp(rng.gauss(0.0, 1.0) * math.log(self.p99_s / self.p50_s) / Z99)


class Profile(Config):
    """How fast a backend starts sandboxes."""

    backend: str
    isolation: Isolation
    create: Latency
    fork: Latency
    resume: Latency = Latency(p50_s=0.03, p99_s=0.1)
    slower_per_1000: float = 0.0
    """By how much its median grows with a thousand alive on the node."""


PROFILES = {
    "namespace": Profile(
        backend="namespace",
        isolation="namespace",
        create=Latency(p50_s=0.019, p99_s=0.057),
        fork=Latency(p50_s=0.030, p99_s=0.090),
        slower_per_1000=0.85,
    ),
    "qemu-tcg": Profile(
        backend="qemu", isolation="vm", create=Latency(p50_s=1.98, p99_s=2.6), fork=Latency(p50_s=0.15, p99_s=1.9)
    ),
}


class SimulationConfig(Config):
    """What is asked for, on what, and what goes wrong."""

    nodes: int = 1000
    sandboxes: int = 100_000
    profile: str = "namespace"
    node: Resources = Resources(memory_mb=65536, cpus=32, disk_mb=400_000)
    start_slots: int = 8
    sizes: tuple[tuple[int, float], ...] = ((256, 0.5), (512, 1.0), (1024, 2.0))
    """MiB and CPUs; drawn as 2 : 2 : 1."""
    interactive_part: float = 0.1
    tenants: int = 10
    fork_part: float = 0.25
    snapshots: int = 1000
    image_part: float = 0.5
    images: int = 64
    image_on_nodes: float = 0.25
    fetch: Latency = Latency(p50_s=1.0, p99_s=4.0)
    network: Latency = Latency(p50_s=0.0005, p99_s=0.002)
    lifetime: Latency = Latency(p50_s=60.0, p99_s=180.0)
    arrive_over_s: float = 0.0
    """All at once, or evenly over so long."""
    dying_nodes: float = 0.01
    silent_nodes: float = 0.01
    """Cut off for a while, shorter or longer than it takes to be given up."""
    trouble_within_s: float = 10.0
    straggling_nodes: float = 0.02
    straggling_factor: float = 10.0
    failing_starts: float = 0.001
    heartbeat_s: float = 1.0
    inventory_every: int = 10
    decision_s: float = 50e-6
    batch: int = 64
    tries: int = 5
    within_s: float = 3600.0
    """Simulated time in which all must have ended."""
    seed: int = 0


def draw_request(config: SimulationConfig, name: str, rng: Random) -> Request:
    """One of the requests this configuration is about."""
    memory_mb, cpus = rng.choices(config.sizes, weights=(2, 2, 1)[: len(config.sizes)])[0]
    fork = config.snapshots > 0 and rng.random() < config.fork_part
    image = f"i{rng.randrange(config.images)}" if not fork and rng.random() < config.image_part else "host"
    return Request(
        id=name,
        tenant=f"t{rng.randrange(config.tenants)}",
        priority="interactive" if rng.random() < config.interactive_part else "training",
        resources=Resources(memory_mb=memory_mb, cpus=cpus),
        isolation=PROFILES[config.profile].isolation,
        image=image,
        snapshot=f"s{rng.randrange(config.snapshots)}" if fork else None,
        snapshot_stored=fork,
    )


def roomy(config: SimulationConfig) -> SchedulerConfig:
    """The default scheduler, with queues long enough for all to ask at once and a memory of all requests."""
    limits: dict[Priority, int] = {"interactive": 2 * config.sandboxes, "training": 2 * config.sandboxes}
    return SchedulerConfig(queues=QueueConfig(limits=limits), keep_final=10 * config.sandboxes, seed=config.seed)


@dataclass(slots=True)
class Want:
    """One client's wish for a sandbox, through as many requests as it takes."""

    request: Request
    asked_at: float
    tries: int = 1
    ready_at: float | None = None
    outcome: str | None = None


@dataclass(slots=True, eq=False)
class SimulatedNode:
    """A machine and its agent."""

    name: str
    resources: Resources
    factor: float
    seq: int = 0
    alive: dict[str, PlaceSandbox] = field(default_factory=dict)
    starting: dict[str, PlaceSandbox] = field(default_factory=dict)
    holds: set[str] = field(default_factory=set)
    dead: bool = False
    silent: bool = False
    used_mb: int = 0
    beats: int = 0
    last_arrival: float = 0.0
    """Of an order: they arrive in order."""

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq


@dataclass(frozen=True)
class Report:
    """What came of a simulation. Times are simulated seconds, but for `cpu_s`."""

    placements: int
    cpu_s: float
    """Of the scheduler: every call of it, heartbeats and all."""
    ready_s: list[float]
    """For each want, from asking to its first ready sandbox; sorted."""
    packing: float
    """Memory reserved, as a share of what the nodes that have any sandbox give, at the fullest moment."""
    lost: int
    """Wants never answered, requests left in no final state, sandboxes and reservations left over
    (those of warm pools are not)."""
    outcomes: dict[str, int]
    totals: dict[str, int]
    simulated_s: float
    history: int
    """A checksum of all that happened, in order: equal for equal seeds."""

    def ready_percentile(self, percent: float) -> float:
        return self.ready_s[min(len(self.ready_s) - 1, int(len(self.ready_s) * percent / 100))]


class Simulation:
    """One run. `clock` measures the scheduler's own cost, with time.process_time, say; the history does not depend on
    it."""

    def __init__(
        self,
        config: SimulationConfig,
        scheduler: SchedulerConfig | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.config, self._clock, self._rng = config, clock, Random(config.seed)
        self.scheduler = Scheduler(scheduler or roomy(config))
        self.profile = PROFILES[config.profile]
        self.now, self.cpu_s, self.history = 0.0, 0.0, 0
        self._events: list[tuple[float, int, Callable[..., None], tuple]] = []
        self._order = itertools.count()
        self._busy_until, self._decide_at, self._settled_at = 0.0, math.inf, 0.0
        self._wants: dict[str, Want] = {}
        self._all: list[Want] = []
        self._open = config.sandboxes
        self._fullest, self._packing = 0, 0.0
        self.nodes = {name: self._make_node(name) for name in (f"n{i:05d}" for i in range(config.nodes))}

    def run(self) -> Report:
        """Until every want has its answer and every node is empty. Raises DeadlineExceeded if that takes too long."""
        self._begin()
        while self._events and not self._over():
            self.now, _, call, arguments = heapq.heappop(self._events)
            if self.now > self.config.within_s:
                raise DeadlineExceeded(f"{self._open} simulated wants to be met", self.config.within_s)
            call(*arguments)
        self.scheduler.check()
        return self._report()

    # --- the stage --------------------------------------------------------------------------------------------------

    def _make_node(self, name: str) -> SimulatedNode:
        config, rng = self.config, self._rng
        straggles = rng.random() < config.straggling_nodes
        node = SimulatedNode(name, config.node, config.straggling_factor if straggles else 1.0)
        node.holds = {image_key(f"i{i}") for i in range(config.images) if rng.random() < config.image_on_nodes}
        return node

    def _begin(self) -> None:
        config, rng, nodes = self.config, self._rng, list(self.nodes.values())
        for i in range(config.snapshots):
            rng.choice(nodes).holds.add(snapshot_key(f"s{i}"))
        for node in nodes:
            self._tell(self.scheduler.hello, self._hello(node))
            self._at(rng.random() * config.heartbeat_s, self._beat, node)
        for node in rng.sample(nodes, round(config.dying_nodes * len(nodes))):
            self._at(rng.random() * config.trouble_within_s, self._die, node)
        for node in rng.sample(nodes, round(config.silent_nodes * len(nodes))):
            at, dead_after_s = rng.random() * config.trouble_within_s, self.scheduler.config.fleet.dead_after_s
            self._at(at, self._fall_silent, node, at + rng.uniform(1.0, 2.0 * dead_after_s))
        for i in range(config.sandboxes):
            want = Want(draw_request(config, f"r{i}", rng), config.arrive_over_s * i / config.sandboxes)
            self._all.append(want)
            self._at(want.asked_at, self._ask, want)
        self._at(0.5, self._tick)

    def _at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), call, arguments))

    def _over(self) -> bool:
        """Once all clients are done, and the last messages, retries and time-outs have had their time."""
        if self._open:
            self._settled_at = self.now + 2 * self.scheduler.config.fleet.dead_after_s
        return self.now > self._settled_at

    def _tick(self) -> None:
        """Look at the packing, now and then, and let time-outs pass."""
        alive = sum(len(node.alive) for node in self.nodes.values())
        if alive > self._fullest:
            busy = [node for node in self.nodes.values() if node.used_mb]
            self._fullest = alive
            self._packing = sum(node.used_mb for node in busy) / sum(node.resources.memory_mb for node in busy)
        self._decide_soon()
        self._at(self.now + 0.5, self._tick)

    # --- the scheduler and its core ---------------------------------------------------------------------------------

    def _tell(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the scheduler, at its own cost."""
        started = self._clock()
        answer = method(*arguments, self.now)
        self.cpu_s += self._clock() - started
        self._decide_soon()
        return answer

    def _decide_soon(self) -> None:
        at = max(self.now, self._busy_until)
        if at < self._decide_at:
            self._decide_at = at
            self._at(at, self._decide)

    def _decide(self) -> None:
        self._decide_at = math.inf
        started = self._clock()
        decisions = self.scheduler.decide(self.now, self.config.batch)
        self.cpu_s += self._clock() - started
        placements = sum(isinstance(command, PlaceSandbox) for command in decisions.commands)
        self._busy_until = self.now + placements * self.config.decision_s
        for command in decisions.commands:
            self._send(command)
        for notice in decisions.notices:
            self.history = zlib.crc32(f"{notice.request} {notice.state} {notice.at}".encode(), self.history)
            self._at(self._busy_until + self.config.network.draw(self._rng), self._notice, notice)
        if placements >= self.config.batch:
            self._decide_soon()

    def _send(self, command: Command) -> None:
        node = self.nodes[command.node]
        node.last_arrival = max(node.last_arrival, self._busy_until + self.config.network.draw(self._rng))
        self._at(node.last_arrival, self._obey, node, command)

    # --- clients ----------------------------------------------------------------------------------------------------

    def _ask(self, want: Want) -> None:
        self._wants[want.request.id] = want
        ticket = self._tell(self.scheduler.submit, want.request)
        if ticket.state is State.REFUSED and ticket.refusal.retry_after_s is not None:
            self._at(self.now + ticket.refusal.retry_after_s, self._ask, want)

    def _notice(self, notice: Notice) -> None:
        want = self._wants.get(notice.request)
        if want is None or want.request.id != notice.request or want.outcome is not None:
            return
        if notice.state == State.READY:
            want.ready_at = self.now if want.ready_at is None else want.ready_at
            self._at(self.now + self.config.lifetime.draw(self._rng), self._finish, want, notice.request)
        elif notice.state == State.FAILED:
            self._again(want, notice)
        elif notice.state == State.REFUSED and notice.why.endswith("add such a node"):
            self._close(want, "refused")
        elif notice.state == State.ENDED:
            self._close(want, "ended early")

    def _again(self, want: Want, notice: Notice) -> None:
        assert notice.failure is not None
        if not notice.failure.retryable or want.tries >= self.config.tries:
            self._close(want, "failed")
            return
        del self._wants[want.request.id]
        want.tries += 1
        want.request = Request(
            f"{want.request.id.partition('+')[0]}+{want.tries}",
            *(getattr(want.request, name) for name in Request.__slots__[1:]),
        )
        self._ask(want)

    def _finish(self, want: Want, request_id: str) -> None:
        if want.outcome is None and want.request.id == request_id:
            self._close(want, "done")
            self._tell(self.scheduler.end, request_id)

    def _close(self, want: Want, outcome: str) -> None:
        want.outcome = outcome
        self._open -= 1

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _obey(self, node: SimulatedNode, command: Command) -> None:
        if node.dead or node.silent:
            return
        if isinstance(command, AskHello):
            self._say(node, self.scheduler.hello, self._hello(node))
        elif isinstance(command, KillSandbox):
            self._remove(node, command.sandbox)
            self._say(node, self.scheduler.ended, Ended(node.name, 1, node.next_seq(), command.sandbox))
        else:
            self._start(node, command)

    def _start(self, node: SimulatedNode, order: PlaceSandbox) -> None:
        profile, rng = self.profile, self._rng
        if order.action != "resume":
            node.used_mb += order.request.resources.memory_mb
            if node.used_mb > node.resources.memory_mb:
                raise EtudeError(f"{node.name} was given {node.used_mb} MiB of {node.resources.memory_mb}")
        node.starting[order.sandbox] = order
        latency = {"create": profile.create, "fork": profile.fork, "resume": profile.resume}[order.action]
        crowded = max(1.0, len(node.starting) / self.config.start_slots)
        slower = node.factor * crowded * (1.0 + profile.slower_per_1000 * len(node.alive) / 1000)
        took_s = slower * latency.draw(rng) + sum(self.config.fetch.draw(rng) for _ in order.fetch)
        self._at(self.now + took_s, self._started, node, order)

    def _started(self, node: SimulatedNode, order: PlaceSandbox) -> None:
        if node.dead or node.starting.pop(order.sandbox, None) is None:
            return
        if order.action != "resume" and self._rng.random() < self.config.failing_starts:
            self._uncount(node, order)
            placed = Placed(node.name, 1, node.next_seq(), order.sandbox, "the guest agent did not answer")
        else:
            node.alive[order.sandbox] = order
            node.holds.update(fetch.key for fetch in order.fetch)
            placed = Placed(node.name, 1, node.next_seq(), order.sandbox)
        self._say(node, self.scheduler.placed, placed)

    def _remove(self, node: SimulatedNode, sandbox: str) -> None:
        order = node.alive.pop(sandbox, None) or node.starting.get(sandbox)
        if order is not None:
            node.starting.pop(sandbox, None)
            self._uncount(node, order)

    def _uncount(self, node: SimulatedNode, order: PlaceSandbox) -> None:
        node.used_mb -= order.request.resources.memory_mb

    def _beat(self, node: SimulatedNode) -> None:
        if node.dead:
            return
        node.beats += 1
        full = node.beats % self.config.inventory_every == 0
        load = (0.1 * len(node.alive) + len(node.starting)) / node.resources.cpus
        pressure = Pressure(
            cpu=load,
            memory=0.6 * node.used_mb / node.resources.memory_mb,
            cpu_some=100.0 * max(0.0, 1.0 - 1.0 / load) if load > 1.0 else 0.0,
        )
        lists = (tuple(node.alive), tuple(sorted(node.holds))) if full else (None, None)
        beat = Heartbeat(node.name, 1, node.next_seq(), pressure, *lists)
        self._say(node, self.scheduler.heartbeat, beat)
        self._at(self.now + self.config.heartbeat_s, self._beat, node)

    def _hello(self, node: SimulatedNode) -> Hello:
        profile = self.profile
        return Hello(
            node.name,
            1,
            node.next_seq(),
            node.resources,
            (Offer(profile.backend, profile.isolation),),
            self.config.start_slots,
            tuple(node.alive.values()),
            tuple(sorted(node.holds)),
        )

    def _say(self, node: SimulatedNode, method: Callable[..., Any], message: Any) -> None:
        """What a silent node says is lost, as if the wire were cut."""
        if not node.silent:
            self._at(self.now + self.config.network.draw(self._rng), self._tell, method, message)

    def _die(self, node: SimulatedNode) -> None:
        node.dead, node.used_mb = True, 0
        node.alive.clear()
        node.starting.clear()

    def _fall_silent(self, node: SimulatedNode, until: float) -> None:
        node.silent = True
        self._at(until, self._speak_again, node)

    def _speak_again(self, node: SimulatedNode) -> None:
        node.silent = False

    # --- the result -------------------------------------------------------------------------------------------------

    def _report(self) -> Report:
        scheduler, outcomes = self.scheduler, Counter(want.outcome or "lost" for want in self._all)
        undecided = sum(count for state, count in scheduler.ledger.counts.items() if state not in FINAL)
        leases = scheduler.fleet.leases
        idle = {name for name, lease in leases.items() if lease.pool is not None}
        on_nodes = {sandbox for node in self.nodes.values() for sandbox in (*node.alive, *node.starting)}
        ready = sorted(want.ready_at - want.asked_at for want in self._all if want.ready_at is not None)
        return Report(
            placements=scheduler.totals["placements"],
            cpu_s=self.cpu_s,
            ready_s=ready,
            packing=self._packing,
            lost=outcomes["lost"] + undecided + len((on_nodes | leases.keys()) - idle),
            outcomes=dict(outcomes),
            totals=dict(scheduler.totals),
            simulated_s=self.now,
            history=self.history,
        )

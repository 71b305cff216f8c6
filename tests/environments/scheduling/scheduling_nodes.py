"""Nodes for the scheduler's tests: they do what they are told, say what they did, and can be made to fail.

They speak the real messages; what they lack is sandboxes. Each test moves time and messages by hand.
"""

from etude.environments.base import Resources
from etude.environments.scheduling.messages import (
    AskHello,
    Ended,
    Heartbeat,
    Hello,
    KillSandbox,
    Offer,
    Placed,
    PlaceSandbox,
    Pressure,
    Request,
)
from etude.environments.scheduling.scheduler import Scheduler, SchedulerConfig

NAMESPACE = (Offer("namespace", "namespace"),)
VM = (Offer("qemu", "vm"),)


def request(name, memory_mb=256, cpus=1.0, disk_mb=64, **more):
    return Request(name, more.pop("tenant", "a"), resources=Resources(memory_mb, 128, cpus, disk_mb), **more)


class Machine:
    """One node's agent."""

    def __init__(self, cluster, name, memory_mb, cpus, offers, start_slots):
        self.cluster, self.name, self.offers, self.start_slots = cluster, name, offers, start_slots
        self.resources = Resources(memory_mb, 0, cpus, 100_000)
        self.incarnation, self.seq = 1, 0
        self.alive, self.starting, self.holds = {}, {}, set()
        self.orders = []
        self.used_mb = 0

    def next_seq(self):
        self.seq += 1
        return self.seq

    def hello(self):
        sandboxes, holds = tuple(self.alive.values()), tuple(sorted(self.holds))
        head = (self.name, self.incarnation, self.next_seq(), self.resources, self.offers)
        self.cluster.scheduler.hello(Hello(*head, self.start_slots, sandboxes, holds), self.cluster.now)

    def beat(self, pressure=None, full=True, draining=False):
        lists = (tuple(self.alive), tuple(sorted(self.holds))) if full else (None, None)
        beat = Heartbeat(self.name, self.incarnation, self.next_seq(), pressure or Pressure(), *lists, draining)
        self.cluster.scheduler.heartbeat(beat, self.cluster.now)

    def obey(self, command):
        """Take an order; starts wait for `start`."""
        self.orders.append(command)
        if isinstance(command, AskHello):
            self.hello()
        elif isinstance(command, KillSandbox):
            self.remove(command.sandbox)
            self.say_ended(command.sandbox)
        elif command.sandbox not in self.starting:
            if command.action != "resume":
                self.used_mb += command.request.resources.memory_mb
                assert self.used_mb <= self.resources.memory_mb, "memory was promised twice"
            self.starting[command.sandbox] = command

    def remove(self, sandbox):
        order = self.starting.pop(sandbox, None)
        order = self.alive.pop(sandbox, None) or order
        if order is not None:
            self.used_mb -= order.request.resources.memory_mb

    def start(self, sandbox, failed=None, tell=True):
        """A start ends, well or not."""
        order = self.starting[sandbox]
        if failed is None:
            del self.starting[sandbox]
            self.alive[sandbox] = order
            self.holds |= {fetch.key for fetch in order.fetch}
        else:
            self.remove(sandbox)
        placed = Placed(self.name, self.incarnation, self.next_seq(), sandbox, failed)
        if tell:
            self.cluster.scheduler.placed(placed, self.cluster.now)

    def say_ended(self, sandbox, why="killed"):
        self.cluster.scheduler.ended(
            Ended(self.name, self.incarnation, self.next_seq(), sandbox, why), self.cluster.now
        )

    def crash(self, sandbox):
        self.remove(sandbox)
        self.say_ended(sandbox, "crashed")


class Cluster:
    """A scheduler, its nodes, and the time."""

    def __init__(self, nodes=2, memory_mb=1024, cpus=4.0, offers=NAMESPACE, start_slots=64, **config):
        self.now = 0.0
        self.scheduler = Scheduler(SchedulerConfig(**config))
        self.nodes, self.notices, self.commands = {}, [], []
        for i in range(nodes):
            self.add(f"n{i}", memory_mb, cpus, offers, start_slots)

    def add(self, name, memory_mb=1024, cpus=4.0, offers=NAMESPACE, start_slots=64, holds=()):
        node = self.nodes[name] = Machine(self, name, memory_mb, cpus, offers, start_slots)
        node.holds |= set(holds)
        node.hello()
        return node

    def submit(self, *requests):
        return [self.scheduler.submit(request, self.now) for request in requests]

    def decide(self, limit=None, deaf=()):
        """Let the scheduler decide, and the nodes take their orders. Returns those of this time."""
        decisions = self.scheduler.decide(self.now, limit)
        self.notices += decisions.notices
        self.commands += decisions.commands
        for command in decisions.commands:
            if command.node not in deaf:
                self.nodes[command.node].obey(command)
        return decisions.commands

    def settle(self, deaf=()):
        """Decide and start until nothing more happens at this time."""
        while self.decide(deaf=deaf):
            self.start_all(deaf)

    def start_all(self, deaf=()):
        for node in self.nodes.values():
            if node.name not in deaf:
                for sandbox in list(node.starting):
                    node.start(sandbox)

    def beat(self, silent=(), **more):
        for node in self.nodes.values():
            if node.name not in silent:
                node.beat(**more)

    def pass_time(self, seconds, silent=(), step=1.0):
        """Time passes, with heartbeats of all but the silent."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + step)
            self.beat(silent)
            self.settle(deaf=silent)

    def state(self, name):
        return str(self.scheduler.ledger.tickets[name].state)

    def node_of(self, name):
        return self.scheduler.ledger.tickets[name].lease.node.name


def places(commands):
    return [command for command in commands if isinstance(command, PlaceSandbox)]


def kills(commands):
    return [command for command in commands if isinstance(command, KillSandbox)]

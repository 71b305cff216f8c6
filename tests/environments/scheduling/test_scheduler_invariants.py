"""Whatever happens, in whatever order: the books agree after every event, memory holds, and in the end all is accounted
for. The same events give the same decisions."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from proofs import often
from scheduling_nodes import VM, Cluster, request

from etude.environments.scheduling.ledger import FINAL
from etude.environments.scheduling.messages import Offer, Pressure
from etude.environments.scheduling.queues import QueueConfig

BOTH = (Offer("namespace", "namespace"), *VM)
picks = st.integers(0, 10_000)


class Storm(RuleBasedStateMachine):
    """Requests, starts, failures, silences, restarts and lost messages, as they come."""

    @initialize(seed=st.integers(0, 5))
    def begin(self, seed):
        limits = {"interactive": 6, "training": 12}
        self.cluster = Cluster(
            nodes=3,
            memory_mb=1024,
            offers=BOTH,
            start_slots=2,
            seed=seed,
            keep_final=1000,
            start_deadline_s=8.0,
            claim_after_s=5.0,
            queues=QueueConfig(limits=limits),
        )
        self.asked, self.silent = 0, set()

    def pick(self, items, pick):
        items = sorted(items)
        return items[pick % len(items)]

    @rule(
        memory_mb=st.sampled_from([64, 200, 512, 1024, 4096]),
        cpus=st.sampled_from([0.5, 2.0, 8.0]),
        tenant=st.sampled_from("ab"),
        urgent=st.booleans(),
        isolation=st.sampled_from([None, "namespace", "vm"]),
        start_from=st.sampled_from([("host", None), ("py", None), ("host", "s")]),
        ttl_s=st.sampled_from([None, 3.0]),
    )
    def ask(self, memory_mb, cpus, tenant, urgent, isolation, start_from, ttl_s):
        priority = "interactive" if urgent else "training"
        kinds = {"isolation": isolation, "image": start_from[0], "snapshot": start_from[1], "ttl_s": ttl_s}
        self.cluster.submit(request(f"r{self.asked}", memory_mb, cpus, tenant=tenant, priority=priority, **kinds))
        self.asked += 1

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def ask_again(self, pick):
        ticket = self.cluster.scheduler.ledger.tickets[f"r{pick % self.asked}"]
        self.cluster.submit(ticket.request)

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def end(self, pick):
        self.cluster.scheduler.end(f"r{pick % self.asked}", self.cluster.now)

    @rule(pick=picks)
    def snapshot(self, pick):
        if self.cluster.nodes:
            self.cluster.nodes[self.pick(self.cluster.nodes, pick)].holds.add("snapshot/s")

    @rule(limit=st.sampled_from([None, 1]))
    def decide(self, limit):
        self.cluster.decide(limit, deaf=self.silent)

    @rule(pick=picks, failed=st.sampled_from([None, None, "no agent"]), told=st.booleans())
    def a_start_ends(self, pick, failed, told):
        starting = [(node.name, sandbox) for node in self.cluster.nodes.values() for sandbox in node.starting]
        if starting:
            name, sandbox = self.pick(starting, pick)
            self.cluster.nodes[name].start(sandbox, failed, tell=told and name not in self.silent)

    @rule(pick=picks)
    def a_sandbox_crashes(self, pick):
        alive = [
            (n.name, sandbox) for n in self.cluster.nodes.values() if n.name not in self.silent for sandbox in n.alive
        ]
        if alive:
            name, sandbox = self.pick(alive, pick)
            self.cluster.nodes[name].crash(sandbox)

    @rule(pick=picks)
    def fall_silent_or_speak(self, pick):
        self.silent ^= {f"n{pick % 3}"}

    @rule(pick=picks)
    def an_agent_restarts(self, pick):
        node = self.cluster.nodes[f"n{pick % 3}"]
        node.incarnation, node.seq = node.incarnation + 1, 0
        for sandbox in list(node.starting):
            if sandbox not in node.alive:
                node.remove(sandbox)
        node.starting.clear()
        if node.name not in self.silent:
            node.hello()

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 16.0]), full=st.booleans(), memory_some=st.sampled_from([0.0, 50.0]))
    def time_passes(self, seconds, full, memory_some):
        self.cluster.now += seconds
        self.cluster.beat(self.silent, full=full, pressure=Pressure(memory_some=memory_some))

    @invariant()
    def the_books_agree(self):
        if not hasattr(self, "cluster"):
            return
        scheduler = self.cluster.scheduler
        scheduler.check()
        assert scheduler.ledger.submitted == self.asked == len(scheduler.ledger.tickets)
        for node in scheduler.fleet.nodes.values():
            assert node.free_memory >= 0 and node.free_disk >= 0
        for name, queue in scheduler.queues.classes.items():
            waiting = [
                t for t in scheduler.ledger.tickets.values() if t.state == "queued" and t.request.priority == name
            ]
            assert queue.length == len(waiting) == sum(queue.tenants.values())
            assert sorted(t.request.id for _, t in scheduler.queues.view(name, 1000)) == sorted(
                t.request.id for t in waiting
            )

    def teardown(self):
        """Calm: all nodes speak, nobody asks; everything asked for is ended, and nothing is left anywhere."""
        if not hasattr(self, "cluster"):
            return
        cluster, scheduler = self.cluster, self.cluster.scheduler
        cluster.pass_time(40.0)
        waiting = [t for t in scheduler.ledger.tickets.values() if t.state == "placing"]
        assert not waiting
        for ticket in list(scheduler.ledger.tickets.values()):
            scheduler.end(ticket.request.id, cluster.now)
        cluster.pass_time(300.0, step=2.0)
        assert {ticket.state for ticket in scheduler.ledger.tickets.values()} <= FINAL
        assert not scheduler.fleet.leases and scheduler.fleet.reserved_memory == 0
        assert not any(node.alive or node.starting or node.used_mb for node in cluster.nodes.values())
        for node in scheduler.fleet.nodes.values():
            assert node.claim is None and node.free_memory == node.memory
        self.the_books_agree()


Storm.TestCase.settings = settings(max_examples=often(60, 600), stateful_step_count=60)
TestStorm = Storm.TestCase


def history(seed):
    cluster = Cluster(nodes=7, seed=seed, offers=BOTH)
    for i in range(120):
        kind = {"isolation": ("vm", "namespace", None)[i % 3], "image": f"i{i % 4}", "tenant": "abc"[i % 3]}
        cluster.submit(request(f"r{i}", 64 * (1 + i % 5), ttl_s=1.0 + i % 3, **kind))
        if i % 10 == 9:
            cluster.pass_time(1.0, silent=["n3"] if 40 < i < 90 else [])
    cluster.pass_time(30.0)
    return [repr(command) for command in cluster.commands], [repr(notice) for notice in cluster.notices]


def test_one_seed_one_history():
    assert history(1) == history(1)
    assert history(1) != history(2)

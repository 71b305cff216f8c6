"""Nodes fall silent, die, come back, restart, leak and lie late: nothing is lost from the books."""

import pytest
from scheduling_nodes import Cluster, kills, places, request

from etude.environments.scheduling.messages import AskHello, Heartbeat, KillSandbox, PlaceSandbox, Pressure
from etude.environments.scheduling.scheduler import Scheduler, SchedulerConfig
from etude.errors import SandboxError


def running(cluster, *names):
    cluster.submit(*(request(name) for name in names))
    cluster.settle()
    assert {cluster.state(name) for name in names} == {"ready"}


def test_a_node_silent_for_a_while_comes_back_with_its_sandboxes():
    cluster = Cluster(nodes=1)
    running(cluster, "r")
    cluster.pass_time(5.0, silent=["n0"])
    assert cluster.scheduler.fleet.nodes["n0"].life == "suspected"
    cluster.submit(request("s"))
    cluster.settle(deaf=["n0"])
    assert (cluster.state("r"), cluster.state("s")) == ("ready", "queued")
    cluster.pass_time(1.0)
    assert (cluster.state("r"), cluster.state("s")) == ("ready", "ready")
    assert cluster.scheduler.totals["adopted"] == 1


def test_a_dead_nodes_sandboxes_are_a_retryable_failure_and_its_starts_go_elsewhere():
    cluster = Cluster(nodes=2, memory_mb=512)
    running(cluster, "r")
    home = cluster.node_of("r")
    cluster.submit(request("s"))
    cluster.decide()
    assert cluster.node_of("s") == home and cluster.state("s") == "placing"
    cluster.pass_time(16.0, silent=[home])
    assert cluster.state("r") == "failed" and cluster.state("s") == "ready"
    failure = cluster.scheduler.ledger.tickets["r"].failure
    assert failure.retryable and home in failure.what
    assert cluster.node_of("s") != home
    assert [notice.state for notice in cluster.notices if notice.request == "r"][-1] == "failed"
    cluster.scheduler.check()


def test_what_a_node_brings_back_from_the_dead_is_killed():
    cluster = Cluster(nodes=2, memory_mb=512)
    running(cluster, "r")
    home = cluster.node_of("r")
    cluster.pass_time(16.0, silent=[home])
    assert cluster.nodes[home].alive
    cluster.beat()
    assert [type(command) for command in cluster.decide()] == [AskHello]
    cluster.settle()
    assert not cluster.nodes[home].alive and cluster.scheduler.totals["leaks_killed"] == 1
    assert cluster.scheduler.fleet.nodes[home].free_memory == 8


def test_a_restarted_agent_is_taken_at_its_word():
    cluster = Cluster(nodes=1, memory_mb=2048)
    running(cluster, "kept", "lost", "dying")
    node = cluster.nodes["n0"]
    cluster.submit(request("starting"))
    cluster.decide()
    cluster.scheduler.end("dying", cluster.now)
    cluster.decide(deaf=["n0"])
    node.incarnation, node.seq = 2, 0
    node.remove(cluster.scheduler.ledger.tickets["lost"].lease.id)
    for sandbox in [*node.starting, cluster.scheduler.ledger.tickets["dying"].lease.id]:
        node.remove(sandbox)
    node.hello()
    states = {name: cluster.state(name) for name in ("kept", "lost", "dying", "starting")}
    assert states == {"kept": "ready", "lost": "failed", "dying": "ended", "starting": "queued"}
    cluster.settle()
    assert cluster.state("starting") == "ready"
    assert cluster.scheduler.fleet.reserved_memory == 8
    cluster.scheduler.check()


def test_a_lost_word_of_a_start_is_made_good_by_the_next_list():
    cluster = Cluster(nodes=1)
    cluster.submit(request("r"))
    [order] = places(cluster.decide())
    cluster.nodes["n0"].start(order.sandbox, tell=False)
    assert cluster.state("r") == "placing"
    cluster.nodes["n0"].beat(full=False)
    assert cluster.state("r") == "placing"
    cluster.nodes["n0"].beat(full=True)
    assert cluster.state("r") == "ready"


def test_a_list_made_before_a_start_ended_says_nothing_about_it():
    cluster = Cluster(nodes=1)
    node = cluster.nodes["n0"]
    cluster.submit(request("r"))
    [order] = places(cluster.decide())
    early = Heartbeat("n0", 1, node.next_seq(), Pressure(), sandboxes=())
    node.start(order.sandbox)
    cluster.scheduler.heartbeat(early, cluster.now)
    assert cluster.state("r") == "ready"
    node.remove(order.sandbox)
    node.beat()
    assert cluster.state("r") == "failed"


def test_a_sandbox_of_nobodys_is_killed():
    cluster = Cluster(nodes=1)
    running(cluster, "r")
    node = cluster.nodes["n0"]
    [(name, order)] = node.alive.items()
    node.alive["stray"] = order
    node.beat()
    assert kills(cluster.decide()) == [KillSandbox("stray", "n0", "nobody's")]
    assert list(node.alive) == [name]


def test_a_start_that_nobody_waits_for_any_more_is_killed_at_once():
    cluster = Cluster(nodes=1)
    cluster.submit(request("r"))
    [order] = places(cluster.decide())
    cluster.scheduler = Scheduler(SchedulerConfig(), epoch="1")
    cluster.nodes["n0"].hello()
    cluster.nodes["n0"].start(order.sandbox)
    assert [kill.sandbox for kill in kills(cluster.decide())] == [order.sandbox]
    assert not cluster.nodes["n0"].alive and cluster.scheduler.totals["leaks_killed"] == 1


def test_room_is_free_only_when_the_node_says_so_and_a_kill_is_repeated_until_it_does():
    cluster = Cluster(nodes=1, memory_mb=256)
    running(cluster, "r")
    cluster.scheduler.end("r", cluster.now)
    cluster.submit(request("s"))
    assert len(kills(cluster.decide(deaf=["n0"]))) == 1
    assert (cluster.state("r"), cluster.state("s")) == ("ended", "queued")
    for deaf in (["n0"], ["n0"], []):
        cluster.now += 10.0
        cluster.beat(full=False)
        assert len(kills(cluster.decide(deaf=deaf))) == 1
    cluster.settle()
    assert cluster.state("s") == "ready" and cluster.scheduler.totals["kills_repeated"] == 3


def test_time_to_live_runs_from_ready_and_can_be_extended():
    cluster = Cluster(nodes=1)
    cluster.submit(request("short", ttl_s=5.0), request("long", ttl_s=5.0))
    with pytest.raises(SandboxError, match="queued"):
        cluster.scheduler.extend("long", 9.0, cluster.now)
    cluster.settle()
    cluster.pass_time(4.0)
    cluster.scheduler.extend("long", 9.0, cluster.now)
    cluster.pass_time(2.0)
    assert (cluster.state("short"), cluster.state("long")) == ("ended", "ready")
    assert cluster.scheduler.ledger.tickets["short"].why == "its time ran out"
    cluster.pass_time(8.0)
    assert cluster.state("long") == "ended" and not cluster.nodes["n0"].alive


def test_a_start_that_takes_too_long_is_given_up_and_tried_elsewhere():
    cluster = Cluster(nodes=2, start_deadline_s=6.0)
    cluster.submit(request("r"))
    [order] = places(cluster.decide())
    for _ in range(6):
        cluster.now += 1.0
        cluster.beat()
        commands = cluster.decide()
    assert [kill.sandbox for kill in kills(commands)] == [order.sandbox]
    [again] = places(commands)
    assert again.node != order.node
    cluster.start_all()
    assert cluster.state("r") == "ready"


def test_ends_and_crashes_are_told_apart():
    cluster = Cluster(nodes=1)
    running(cluster, "crashes", "ends")
    node = cluster.nodes["n0"]
    lease = {name: cluster.scheduler.ledger.tickets[name].lease.id for name in ("crashes", "ends")}
    node.crash(lease["crashes"])
    node.remove(lease["ends"])
    node.say_ended(lease["ends"])
    assert (cluster.state("crashes"), cluster.state("ends")) == ("failed", "ended")
    cluster.scheduler.end("crashes", cluster.now)  # safe to repeat, whatever the state
    with pytest.raises(SandboxError, match="no request nobody"):
        cluster.scheduler.end("nobody", cluster.now)


def test_a_cancelled_start_is_killed_when_it_turns_up():
    cluster = Cluster(nodes=1)
    cluster.submit(request("r"))
    [order] = places(cluster.decide())
    cluster.scheduler.end("r", cluster.now, "cancelled")
    cluster.nodes["n0"].start(order.sandbox)
    assert cluster.state("r") == "ended"
    cluster.settle()
    assert not cluster.nodes["n0"].alive and not cluster.scheduler.fleet.leases


def test_nothing_is_placed_on_a_restarted_agent_that_has_not_introduced_itself():
    """Its Hello would be about a time before that, and have the request placed twice."""
    cluster = Cluster(nodes=1)
    node = cluster.nodes["n0"]
    node.incarnation, node.seq = 2, 0
    cluster.submit(request("r"))
    node.beat(full=False)
    assert [type(command) for command in cluster.decide()] == [AskHello]
    cluster.settle()
    assert cluster.state("r") == "ready" and [type(order) for order in node.orders] == [AskHello, PlaceSandbox]
    cluster.scheduler.check()


def test_a_restarted_scheduler_adopts_what_nodes_run_and_answers_the_ids_it_is_asked_again():
    cluster = Cluster(nodes=2)
    running(cluster, "r", "s")
    home = cluster.node_of("r")
    cluster.scheduler = Scheduler(SchedulerConfig(recover_s=5.0), epoch="1", now=cluster.now)
    cluster.submit(request("r"), request("new"))  # before the nodes have reported: held back, so not made twice
    assert cluster.decide() == [] and "restart" in cluster.scheduler.waiting_for("r", cluster.now).why
    assert cluster.scheduler.next_wake(cluster.now) == cluster.now + 5.0
    cluster.beat()
    cluster.settle()
    assert (cluster.state("r"), cluster.state("s"), cluster.state("new")) == ("ready", "ready", "queued")
    assert cluster.node_of("r") == home and cluster.scheduler.totals["adopted"] == 2
    cluster.pass_time(6.0)
    assert cluster.state("new") == "ready"
    cluster.scheduler.end("s", cluster.now)
    cluster.settle()
    assert sum(len(node.alive) for node in cluster.nodes.values()) == 2
    cluster.scheduler.check()


def test_the_next_wake_is_when_something_falls_due():
    cluster = Cluster(nodes=1, start_deadline_s=2.0)
    assert cluster.scheduler.next_wake(0.0) == 3.0  # the node's silence
    cluster.submit(request("r"))
    cluster.decide()
    assert cluster.scheduler.next_wake(0.0) == 2.0  # its start

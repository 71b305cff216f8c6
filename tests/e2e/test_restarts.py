"""Processes of a run that die or hang are replaced, and the run goes on as if nothing had been."""

import json
import signal

import pytest
from killing import Victim
from small import left, lines, steps

pytestmark = pytest.mark.timeout(420)


@pytest.mark.proof(26)
def test_a_trainer_and_workers_that_die_or_hang_are_replaced(tmp_path):
    out = tmp_path / "run"
    pace = ("rollouts.max_steps=5", "rollouts.max_minutes=10", "rollouts.checkpoint_every=2")
    health = ("deadlines.scale=0.2", "faults.spares=1")
    with Victim(out, *pace, *health) as run:
        run.wait(lambda: len(steps(out)) >= 1, "the first step")
        first = run.kill("trainer")
        run.wait(lambda: len(steps(out)) >= 2, "the second step")
        assert run.processes("trainer")[0].pid != first
        run.kill("sessions")
        run.wait(lambda: len(lines(out, "restart")) >= 2, "the worker's restart")
        run.kill("sessions", signal.SIGSTOP)
        summary = json.loads(run.end().splitlines()[-1])
    assert [(line["step"], line["version"]) for line in steps(out)] == [(step, step) for step in range(1, 6)]
    assert summary["restarts"] == {"trainer": 1, "sessions": 2}
    assert summary["hung"] == 1
    assert summary["counters"]["deltas_published"] == 5
    assert left() == []


@pytest.mark.proof(53)
def test_a_worker_that_hangs_while_it_starts_is_replaced_too(tmp_path):
    out = tmp_path / "run"
    one = ("rollouts.workers=1", "faults.spares=0", "deadlines.scale=0.15")
    with Victim(out, *one, "rollouts.max_steps=3", "rollouts.max_minutes=10") as run:
        run.wait(lambda: len(steps(out)) >= 1, "the first step")
        dead = run.kill("sessions")
        run.wait(lambda: [each for each in run.processes("sessions") if each.pid != dead], "the next worker's start")
        run.kill("sessions", signal.SIGSTOP)
        summary = json.loads(run.end().splitlines()[-1])
    assert len(steps(out)) == 3 and summary["restarts"]["sessions"] == 2  # others may start slowly on a busy machine
    assert left() == []


@pytest.mark.proof(23)
def test_a_controller_that_dies_lives_on_and_the_users_word_ends_it(tmp_path):
    out = tmp_path / "run"
    with Victim(out, "rollouts.max_steps=1000", "rollouts.max_minutes=10") as run:
        before = run.wait(lambda: run.processes("trainer"), "the first life's trainer")
        run.kill("controller")
        run.wait(lambda: len(steps(out)) >= 1, "a step of the second life")
        assert not any(process.is_running() for process in before)
        assert len(lines(out, "restart")) == 1
        run.started.send_signal(signal.SIGINT)
        run.started.communicate(timeout=240)
        assert (run.started.returncode, "--resume" in run.said()) == (130, True)
    assert left() == []


def test_a_recipe_that_is_wrong_is_not_tried_again(tmp_path):
    with Victim(tmp_path / "run", "faults.restart=1") as run:
        run.started.communicate(timeout=60)
    assert (run.started.returncode, "faults.restart: unknown key" in run.said()) == (42, True)

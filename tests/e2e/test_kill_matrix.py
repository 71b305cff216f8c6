"""The kill matrix: every kind of process of a run, killed with -9 while a sample is in each state of its life.

Runs go in lockstep, so that what they train on is fixed by their recipe: however often its processes died, a run ends
by itself, with the accounting and the weights of the run that nobody disturbed.
"""

import hashlib
import json

import pytest
from injector import STATES, kill_in_each_state
from killing import RESTARTS, Victim
from restarted_sandboxes import Sandboxes
from restarted_store import Store
from small import LOCKSTEP, archived, left, steps

pytestmark = pytest.mark.timeout(900)
RECIPE = (
    *LOCKSTEP, "rollouts.lag=1", "rollouts.max_steps=6", "rollouts.max_minutes=30",
    "rollouts.concurrency=6", "rollouts.attempts=1000",
    "faults.journal=true", "deadlines.scale=0.5", *RESTARTS,
)  # fmt: skip


def became(out, printed):
    """What a run has made of its samples: the same, whatever happened to its processes."""
    summary = json.loads(printed.splitlines()[-1])
    archived(out)
    return {
        "samples": summary["samples"],
        "trained": [(line["step"], line["version"], line["groups"]) for line in steps(out)],
        "weights": hashlib.sha256((out / "model" / "model.safetensors").read_bytes()).hexdigest(),
    }, summary


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    with Victim(out, *RECIPE) as run:
        return became(out, run.end())[0]


CONTROLLER = ("controller",)  # each of its deaths is one of the whole run
ROWS = [(CONTROLLER, STATES[:3]), (CONTROLLER, STATES[3:6]), (CONTROLLER, STATES[6:]), (("engine", "trainer"), STATES)]


@pytest.mark.proof(70)
@pytest.mark.parametrize(("kinds", "states"), ROWS, ids="+".join)
def test_processes_killed_in_every_state_change_nothing(tmp_path, undisturbed, kinds, states):
    out = tmp_path / "run"
    with Victim(out, *RECIPE) as run:
        assert kill_in_each_state(run, killing(run, kinds), states) == len(states) * len(kinds)
        found, summary = became(out, run.end())
    assert found == undisturbed
    assert all(summary["restarts"][kind] >= len(states) - 1 for kind in kinds)  # the last may come as the run ends
    assert left() == []


@pytest.mark.proof(60)
def test_workers_and_servers_killed_in_every_state_change_nothing(tmp_path, undisturbed):
    out, kinds = tmp_path / "run", ("sessions", "rewards")
    with (
        Store(tmp_path / "objects") as store,
        Sandboxes(tmp_path / "sandboxes") as sandboxes,
        Victim(out, *RECIPE, *store.recipe(), *sandboxes.recipe()) as run,
    ):
        servers = {"store": store.restart, "environments": sandboxes.restart}
        kill_in_each_state(run, killing(run, kinds) | servers)
        found, summary = became(out, run.end())
        assert store.lives == len(sandboxes.pids) == len(STATES) + 1
    assert found == undisturbed
    assert all(summary["restarts"][kind] >= len(STATES) - 1 for kind in kinds)
    assert left() == []


def killing(run, kinds):
    return {kind: (lambda kind=kind: run.kill(kind)) for kind in kinds}

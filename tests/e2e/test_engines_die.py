"""Engines of a run that are killed, or that hang: their sessions go on elsewhere, and others take their place."""

import json
import signal

import pytest
from killing import Victim
from small import left, lines, steps

pytestmark = pytest.mark.timeout(900)


@pytest.mark.proof(34)
def test_no_rollout_is_lost_with_its_engine(tmp_path):
    out = tmp_path / "run"
    health = ("deadlines.scale=0.2", "faults.spares=1")
    with Victim(out, "rollouts.max_steps=1000", "rollouts.max_minutes=10", *health) as run:
        run.wait(lambda: len(steps(out)) >= 1, "the first step")
        joined = run.ask("engines", "--join").stdout
        assert "engine-2 serving" in joined and "spare" in joined
        run.kill("engine")
        run.wait(lambda: len(lines(out, "restart")) >= 1, "the dead engine's restart")
        run.wait(lambda: len(steps(out)) >= 2, "the second step")
        assert "engine-2" not in run.ask("engines", "--leave", "engine-2").stdout
        run.kill("engine", signal.SIGSTOP)
        run.last_step()
        summary = json.loads(run.end().splitlines()[-1])
    assert [(line["step"], line["version"]) for line in steps(out)] == [(n, n) for n in range(1, summary["steps"] + 1)]
    assert summary["restarts"] == {"engine": 2}
    fleet, counters = summary["fleet"], summary["counters"]
    assert (fleet["engines_lost"], fleet["engines_replaced"]) == (2, 2)
    assert (fleet["engines_joined"], fleet["engines_left"]) == (1, 1)
    assert fleet["spares_used"] >= 1
    assert fleet["turns_resampled"] > 0 and fleet["sessions_moved"] > 0
    assert counters["infra_failed"] == 0
    assert counters["deltas_published"] == summary["steps"]
    assert left() == []

"""Resume is an equality: in lockstep a run that is killed anywhere, and resumed, ends with the weights of one that was
not, bit for bit.

Each point is a kill -9 of everything the run has started, Ray included, at a random place: after so many samples were
scored, and up to a second. ETUDE_RESUME_POINTS=20 makes so many, half of them with each lag; ETUDE_RESUME_SEED says
which.
"""

import hashlib
import json
import os
import random
import time
from functools import partial

import pytest
from killing import Victim
from small import LOCKSTEP, archived, left, lines, steps

POINTS = int(os.environ.get("ETUDE_RESUME_POINTS", "0"))
CASES = [(0, POINTS // 2), (1, POINTS - POINTS // 2)] if POINTS else [(1, 2)]
"""Lags, and kills with each."""
SEED = int(os.environ.get("ETUDE_RESUME_SEED", "8"))
KILLS = 4  # most in one run
STEPS, GROUPS, SIZE = 3, 2, 4
RECIPE = (
    *LOCKSTEP, f"rollouts.max_steps={STEPS}", "rollouts.max_minutes=60",
    f"rollouts.groups_per_step={GROUPS}", f"groups.size={SIZE}",
)  # fmt: skip

pytestmark = pytest.mark.timeout(900 * (2 + POINTS))


def outcome(out, summary):
    """Everything that must be the same."""
    facts = ("step", "version", "groups", "reward", "loss", "grad_norm", "trained_tokens", "age_tokens")
    weights = sorted((out / "model").glob("*.safetensors"))
    archived(out)
    return {
        "weights": [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights],
        "steps": [{name: line[name] for name in facts} for line in steps(out)],
        "roots": sorted({(line["version"], line["root"]) for line in lines(out, "delivery")})[-1:],
        "samples": summary["samples"],
    }


def finished(out, lag, resume):
    with Victim(out, *RECIPE, f"rollouts.lag={lag}", resume=resume) as run:
        return outcome(out, json.loads(run.end(900).splitlines()[-1]))


def killed(out, lag, points, draw):
    """A run that is killed at each of these points: after so many scored samples in all. Returns how often it was."""
    seen, alive = set(), 0
    for resume, point in enumerate(points):
        with Victim(out, *RECIPE, f"rollouts.lag={lag}", resume=resume > 0) as run:
            run.wait(partial(_so_far, out, seen, point, run), f"{point} scored samples", 900)
            time.sleep(draw.random())
            alive += run.started.poll() is None
            run.kill_all()
    return alive


def _so_far(out, seen, point, run):
    """Whether so many samples were scored, or all."""
    seen.update(path.parent for path in (out / "trajectories").glob("*/*/score"))
    return ((out / "ledger").exists() and len(seen) >= point) or run.started.poll() is not None


@pytest.mark.proof(55)
@pytest.mark.parametrize(("lag", "points"), CASES)
def test_a_run_killed_anywhere_ends_with_the_same_weights(tmp_path, lag, points):
    draw = random.Random(f"{SEED} {lag}")
    undisturbed = finished(tmp_path / "undisturbed", lag, resume=False)
    assert len(undisturbed["steps"]) >= 2
    assert len({line["loss"] for line in undisturbed["steps"]}) == len(undisturbed["steps"])
    for number in range(0, points, KILLS):
        out = tmp_path / f"killed-{number}"
        kills = sorted(draw.randrange(STEPS * GROUPS * SIZE) for _ in range(min(KILLS, points - number)))
        assert killed(out, lag, kills, draw), "every run had ended before it was to be killed"
        assert finished(out, lag, resume=True) == undisturbed, f"killed after {kills} samples"
    assert left() == []

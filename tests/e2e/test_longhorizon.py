"""Sessions longer than their context, through a whole run: sampled, scored, credited, packed and trained on."""

import json
import subprocess
import sys

import pytest
from small import ROOT, lines, steps, variables

pytestmark = pytest.mark.timeout(300)
SMALL = [
    "model.path=models/etude-tiny", "evaluation.per_rung=1", "evaluation.heldout_per_rung=0", "groups.size=4",
    "rollouts.concurrency=16", 'groups.drop_zero_variance="never"', "rollouts.max_steps=2", "rollouts.max_minutes=4",
    "trainer.credit.baseline=segment", "trainer.credit.feedback={}",
]  # fmt: skip


@pytest.mark.proof(15)
def test_summaries_are_sampled_credited_and_trained_on(tmp_path):
    sets = [part for override in SMALL for part in ("--set", override)]
    recipe = str(ROOT / "recipes/longhorizon.toml")
    done = subprocess.run(
        [sys.executable, "-m", "etude.cli.main", "train", recipe, "--out", str(tmp_path / "run"), "--json", *sets],
        cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    for feature in ("summaries", "summary_tokens_trained", "hints", "hint_tokens", "routes_given"):
        assert counters[feature] > 0, feature
    assert counters["summary_tokens_masked"] == 0
    trained = steps(tmp_path / "run")
    assert [line["version"] for line in trained] == [1, 2]
    for line in trained:
        assert line["segments_trained"] > line["trained_rollouts"], "some trajectories have several segments"
        assert line["routes_coverage"] > 0.99 and line["hint_kl"] > 0
    assert trained[0]["max_abs_dlogp"] == 0.0, "trainer and sampler agree on every segment"
    assert lines(tmp_path / "run", "evaluation")

"""The whole loop with an engine that is not ours: a server that speaks vLLM's HTTP samples, and takes every version."""

import json
import sys
from pathlib import Path

import pytest
from small import ROOT, left, run, steps

from etude.models.checkpoint import load_checkpoint

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from foreign_stand_in import VllmStandIn

pytestmark = pytest.mark.timeout(420)


@pytest.mark.proof(19)
def test_a_run_trains_through_a_foreign_engine(tmp_path):
    decoder, _ = load_checkpoint(ROOT / "models/etude-tiny")
    with VllmStandIn(decoder, "npy") as server:
        engine = f'kind="vllm", urls=["{server.url}"], weights_dir="{tmp_path / "weights"}", tolerance=0.01'
        limits = ("rollouts.max_steps=2", "rollouts.max_minutes=5")
        done = run(tmp_path / "run", *limits, f"engine={{{engine}}}")  # whole: the recipe's own engine guesses tokens
        assert done.returncode == 0, done.stderr[-2000:]
        assert server.engine.version == 2
    counters = json.loads(done.stdout.splitlines()[-1])["counters"]
    assert counters["checks"] + counters.get("swaps_superseded", 0) >= 3 and counters["checks"] >= 2
    assert counters["routes_given"] > 0
    assert counters["routed_positions"] > 0
    assert counters["infra_failed"] == 0
    trained = steps(tmp_path / "run")
    assert [line["version"] for line in trained] == [1, 2]
    assert trained[0]["max_abs_dlogp"] < 1e-3
    assert left() == []

"""A first run with weights that were never trained: it does its work, and that the model calls no tool is no fault."""

import json

import pytest
from small import ROOT, run

from etude.models.checkpoint import save_checkpoint
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.tokenizer import load_tokenizer

pytestmark = pytest.mark.proof(60)


def test_a_run_of_a_model_that_calls_nothing_ends_well_with_summary_and_report(tmp_path):
    decoder = Decoder(ModelConfig(vocab_size=1024, width=32, layers=1, heads=2, kv_heads=1, head_width=16, experts=2))
    decoder.initialise(0)
    save_checkpoint(decoder, tmp_path / "model", load_tokenizer(ROOT / "models/etude-tiny"))
    sets = (
        f"model.path={tmp_path / 'model'}", "groups.drop_zero_variance=never", "rollouts.max_steps=2",
        "rollouts.max_minutes=20", "rollouts.total_minutes=",
    )  # fmt: skip
    ended = run(tmp_path / "run", *sets)
    assert ended.returncode == 0, ended.stderr[-2000:]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert {"tool_calls", "parallel_turns"} <= set(summary["not_acted"]) and summary["steps"] == 2
    assert (tmp_path / "run/report.html").stat().st_size > 10_000

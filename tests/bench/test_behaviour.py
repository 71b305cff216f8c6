"""Behaviour against training compute: a known trend is found again, and what cannot be fitted is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from proofs import one_of_each

from etude.bench.behaviour import as_json, behaviour_of, behaviour_page, trends_summary
from etude.cli.main import main
from etude.errors import ConfigError
from etude.harness.conduct import Conduct, conduct_of
from etude.models.checkpoint import check_checkpoint, load_checkpoint
from etude.models.size import active_parameters
from etude.records import Event

MODEL = Path(__file__).parents[2] / "models/etude-tiny"


def run_of(directory, steps, slope=0.2, torn=""):
    """Turns grow by `slope` for ten times the compute, with noise that steps share with their neighbours."""
    rng, noise = np.random.default_rng(3), 0.0
    rows, tokens = [], 0
    for step in range(1, steps + 1):
        tokens += 1000
        noise = 0.7 * noise + rng.normal(0, 0.05)
        turns = 4 + slope * np.log10(tokens) + noise
        rows.append({"kind": "step", "step": step, "batch_tokens": 1000.0, "turns": turns, "solve_rate": 0.5})
    directory.mkdir()
    (directory / "recipe.json").write_text(json.dumps({"model": {"path": str(MODEL)}}))
    lines = [json.dumps({"kind": "evaluation"}), *map(json.dumps, rows), json.dumps(rows[-1])]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n" + torn)
    return directory


@pytest.mark.parametrize("slope", one_of_each(0.3, [0.6, 0.0, -0.6]))
def test_a_known_trend_is_found_within_its_interval(tmp_path, slope):
    trends = behaviour_of(run_of(tmp_path / "run", 120, slope, torn='{"kind": "st'))
    found = as_json(trends)
    assert found["steps"] == 120 and set(found["measures"]) == {"turns", "solve_rate"}, (
        "what was not logged is left out"
    )
    turns = found["measures"]["turns"]
    assert turns["low"] <= slope <= turns["high"] and turns["high"] - turns["low"] < 0.8
    assert (turns["low"] > 0) is (slope > 0) and (turns["high"] < 0) is (slope < 0)
    assert found["measures"]["solve_rate"]["per_decade"] == pytest.approx(0, abs=1e-9)
    page = behaviour_page(tmp_path / "run", trends).read_text()
    assert "<svg" in page and "turns a session" in page and "120 steps" in trends_summary(trends)


def test_what_cannot_be_fitted_is_refused_in_one_line(tmp_path, capsys):
    with pytest.raises(ConfigError, match="3 steps are too few"):
        behaviour_of(run_of(tmp_path / "short", 3))
    assert main(["bench", "behaviour", str(tmp_path / "nowhere")]) == 42
    assert "no run of `etude train` here" in capsys.readouterr().err
    assert main(["bench", "behaviour", str(run_of(tmp_path / "long", 12)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 12


def test_active_parameters_are_those_a_token_meets():
    config, (decoder, _) = check_checkpoint(MODEL), load_checkpoint(MODEL)
    matrices = {name: each.numel() for name, each in decoder.named_parameters() if each.dim() > 1}
    experts = sum(size for name, size in matrices.items() if name.endswith(("gate_up", "down")))
    idle = experts * (1 - config.experts_per_token / config.experts)
    assert active_parameters(config) == sum(matrices.values()) - idle


def test_conduct_counts_what_was_looked_at_before_the_first_edit():
    names = ["list_dir", "run_terminal_cmd", "grep", "edit_file", "read_file"]
    events = [Event("tool_call", 0, {"name": name}) for name in names]
    each = dict.fromkeys(names, 1)
    assert conduct_of(events) == Conduct(5, 2, True, 1, edits=1, edits_unread=1, by_tool=each)
    assert conduct_of(events[:3]) == Conduct(3, 2, False, 1, by_tool=dict.fromkeys(names[:3], 1))

"""`make agent`: what it makes itself, and what its recipe turns on. The whole run takes most of an hour."""

import sys
from pathlib import Path

from etude.config import load_recipe
from etude.harness.config import HarnessConfig
from etude.models.config import ModelConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.proof import used_at_once, used_in_time

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.agent_run import ACTED, HARNESS, LIMITS, RULES, line, practice_task, some  # noqa: E402

DENSE = ModelConfig(vocab_size=64, experts=0, dense_width=32)
PASSES = {"pass": {"1": {"rate": 0.5, "low": 0.2, "high": 0.8}}, "solved": 2, "judged": 4}
FOUND = {"mined": PASSES, "practice": {**PASSES, "conduct": {"sampled_tokens": 100.0}}}


def test_every_feature_of_the_recipe_must_have_acted():
    recipe = load_recipe(ROOT / "recipes/agent.toml", RunConfig)
    demanded = {*used_at_once(recipe, DENSE, planted=True), *used_in_time(recipe)}
    assert {*ACTED} - {"quarantined"} <= demanded
    assert {"adapters_merged", "adapters_moved", "drawn_by_difficulty"} <= demanded
    assert len(recipe.harness.tools) == 10


def test_the_exam_is_played_through_the_recipes_harness():
    recipe, given = load_recipe(ROOT / "recipes/agent.toml", RunConfig).harness, dict(key.split("=") for key in HARNESS)
    asked = {"toolset": given["harness.toolset"], "max_turn_tokens": int(given["harness.max_turn_tokens"])}
    tool = {"max_observation_bytes": int(given["harness.tool.max_observation_bytes"])}
    assert recipe == HarnessConfig.model_validate({**asked, "tool": tool})


def test_practice_has_rules_a_rubric_and_room():
    task = practice_task(1, "train", 0)
    assert (task.files["AGENTS.md"], task.limits) == (RULES, LIMITS) and task.rubric
    assert practice_task(1, "eval", 0).split == "eval"


def test_of_each_repository_so_many(tmp_path):
    for name in ("mined-a-1", "mined-a-2", "mined-b-1"):
        (tmp_path / "all" / name).mkdir(parents=True)
    some(tmp_path / "all", tmp_path / "few", 1)
    assert sorted(path.name for path in (tmp_path / "few").iterdir()) == ["mined-a-1", "mined-b-1"]


def test_the_last_line_names_what_has_not_acted():
    counters = dict.fromkeys((*ACTED, "criteria_not_judged"), 1) | {"calls_of_grep": 3}
    told = line(counters, FOUND, FOUND)
    assert told["tools_used"] == ["grep"] and "read_lints" in told["not_acted"] and "audited" not in told["not_acted"]
    assert told["cost_per_solved"] == 200.0 and told["pass1_ci"] == [0.2, 0.8]
    assert "quarantined" in line({**counters, "quarantined": 0}, FOUND, FOUND)["not_acted"]

"""A run whose own tasks a benchmark measures need not evaluate a family beside them."""

from pathlib import Path

import pytest

from etude.config import load_recipe
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.rollouts.evaluate import evaluation_set, summarise

ROOT = Path(__file__).parents[2]
NOTHING = ["evaluation.per_rung=0", "evaluation.heldout_per_rung=0", "evaluation.real=false", "control.enabled=false"]


def test_with_tasks_of_ones_own_nothing_need_be_evaluated():
    recipe = load_recipe(ROOT / "recipes/agent.toml", RunConfig)
    assert evaluation_set(recipe.evaluation, recipe.rollouts.family) == []
    assert summarise([], [], [])["pass1"] is None


def test_a_family_that_is_trained_on_is_evaluated():
    with pytest.raises(ConfigError, match="0 leaves nothing to measure"):
        load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, NOTHING)

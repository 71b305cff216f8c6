"""What a run must have used by its end is what its own tasks can bring about."""

from pathlib import Path

import pytest

from etude.config import load_recipe
from etude.errors import UnusedFeature
from etude.explain import keys_of
from etude.models.config import ModelConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.proof import SWITCHES, remarks, require_used, unused, used

QUICKSTART = Path(__file__).parents[2] / "recipes/quickstart.toml"
MOE, DENSE = ModelConfig(vocab_size=64), ModelConfig(vocab_size=64, experts=0, dense_width=32)


def test_only_generated_tasks_must_have_had_parallel_calls():
    """A model may never make one in somebody's own repository: the run is none the worse."""
    for sets, wanted in ([], True), (['rollouts.tasks=["tasks"]'], False):
        names = used(load_recipe(QUICKSTART, RunConfig, sets), MOE, steps=2, restored=False)
        assert ("parallel_turns" in names) is wanted and "tool_calls" in names


def test_routes_must_have_been_given_where_the_model_has_routers():
    for sets, model, wanted in (
        ([], MOE, True),
        ([], DENSE, False),
        (["trainer.router_replay=true"], MOE, True),
        (["trainer.router_replay=false", "trainer.replay_margin="], MOE, False),
    ):
        assert ("routes_given" in used(load_recipe(QUICKSTART, RunConfig, sets), model, 2, False)) is wanted


def test_a_planted_cheat_must_have_been_found():
    for planted in (True, False):
        assert ("planted_found" in used(load_recipe(QUICKSTART, RunConfig), DENSE, 2, False, planted)) is planted


def test_what_the_model_decides_is_a_remark_and_effort_only_where_nothing_is_solved():
    names = unused(["tool_calls", "parallel_turns", "effort_charged", "archived"], {"archived": 2})
    assert names == ["tool_calls", "parallel_turns", "effort_charged"]
    require_used(names, {"solved": 0})
    assert [said.split()[0] for said in remarks(names, {})] == ["the", "the", "no"]
    with pytest.raises(UnusedFeature, match=r"in this run: effort_charged \(of rewards\.effort\); leave out"):
        require_used(names, {"solved": 1})
    with pytest.raises(UnusedFeature, match=r"in this run: archived; leave out"):
        require_used(["tool_calls", "archived"], {})


def test_a_switch_is_a_key_of_a_recipe():
    known = {key.path for key in keys_of(RunConfig)}
    assert set(SWITCHES.values()) <= known

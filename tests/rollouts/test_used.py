"""What a run must have used by its end is what its own tasks can bring about."""

from pathlib import Path

from etude.config import load_recipe
from etude.models.config import ModelConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.proof import used

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

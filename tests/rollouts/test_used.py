"""What a run must have used by its end is what its own tasks can bring about."""

from pathlib import Path

from etude.config import load_recipe
from etude.rollouts.config import RunConfig
from etude.rollouts.proof import used

QUICKSTART = Path(__file__).parents[2] / "recipes/quickstart.toml"


def test_only_generated_tasks_must_have_had_parallel_calls():
    """A model may never make one in somebody's own repository: the run is none the worse."""
    for sets, wanted in ([], True), (['rollouts.tasks=["tasks"]'], False):
        names = used(load_recipe(QUICKSTART, RunConfig, sets), steps=2, restored=False)
        assert ("parallel_turns" in names) is wanted and "tool_calls" in names

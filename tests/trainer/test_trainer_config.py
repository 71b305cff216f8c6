"""What a trainer cannot be told."""

from pathlib import Path

import pytest

from etude.config import load_recipe, overridden
from etude.errors import ConfigError
from etude.rollouts.config import RunConfig
from etude.trainer.config import MOST_RANKS

MESH = load_recipe(Path(__file__).parents[2] / "recipes/mesh.toml", RunConfig)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("trainer.piece_tokens", ["0", "-5", "1", "1000000000000"]),
        ("trainer.threads", ["0", "-3", "100000000000"]),
        ("trainer.optimizer.lr", ["-1", "nan", "inf"]),
        ("trainer.optimizer.eps", ["0", "nan", "inf"]),
        ("trainer.ranks", ["0", "true", "1000000000000", '"4"']),
        ("trainer.ranks.fsdp", ["0", "1e3", "1000000000000"]),
    ],
)
def test_numbers_that_no_trainer_could_have_are_refused_by_their_key(key, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"{key}: Input should be"):
            overridden(MESH, [f"{key}={value}"])


def test_a_mesh_of_more_ranks_than_anybody_has_is_refused():
    assert overridden(MESH, [f"trainer.ranks={{fsdp={MOST_RANKS}}}"]).trainer.processes == MOST_RANKS
    with pytest.raises(ConfigError, match=r"trainer\.ranks: are 32768 in all; give at most 16384"):
        overridden(MESH, ["trainer.ranks={fsdp=8192, replicate=4}"])

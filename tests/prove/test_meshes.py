"""A mesh of ranks beside one process: every mesh of one and two axes and some of three, runs of twenty steps, and kills
at each moment of saving."""

import itertools
import random
import shutil

import numpy as np
import proofs
import pytest
from mesh_cases import SHAPES, ranks_at_work
from mesh_world import World
from test_mesh import GRADIENT, STEP, alone, goes_where_one_does, largest_error, learns_what_one_does

from etude.trainer import checkpoint
from etude.trainer.mesh.sizes import Sizes

MESHES = (
    {"fsdp": 1}, {"fsdp": 2}, {"ep": 2}, {"cp": 2}, {"replicate": 2}, {"fsdp": 2, "ep": 2}, {"cp": 2, "ep": 2},
    {"fsdp": 2, "cp": 2}, {"replicate": 2, "fsdp": 2}, {"replicate": 2, "ep": 2}, {"replicate": 2, "cp": 2},
    {"fsdp": 4}, {"ep": 4}, {"cp": 4},
)  # fmt: skip
CASES = [
    (axes, shape, optimizer, lora)
    for axes, shape, optimizer, lora in itertools.product(MESHES, SHAPES, ("muon", "adamw"), (False, True))
    if not (shape == "dense" and "ep" in axes) and not (shape != "latent" and axes.get("cp") == 4)
]


world = pytest.fixture(ranks_at_work, scope="module", name="world")
pytestmark = pytest.mark.timeout(3600)
"""Ranks that hang are found by their world, whatever the clock says."""


@pytest.mark.proof(60)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_meshes_optimizers_and_adapters_agree_with_one_process(world, shape):
    worst = [0.0, 0.0]
    cases = [each for each in CASES if each[1] == shape]
    for axes, _, optimizer, lora in cases:
        gradients, moved, *_ = alone(shape, optimizer, lora)
        for theirs in world.run(Sizes.of(axes).world, "one_step", shape, optimizer, lora, axes):
            errors = [largest_error(theirs[0], gradients), largest_error(theirs[1], moved)]
            assert errors[0] < GRADIENT and errors[1] < STEP, (axes, shape, optimizer, lora, errors)
            worst = np.maximum(worst, errors)
    print(f"{len(cases)} cases: gradients within {worst[0]:.1e}, steps within {worst[1]:.1e}")


LONG = [
    ({"cp": 2, "ep": 2}, "latent", "adamw"), ({"fsdp": 2, "cp": 2}, "experts", "adamw"),
    ({"replicate": 2, "ep": 2}, "latent", "muon"), ({"fsdp": 4}, "dense", "muon"),
    ({"replicate": 2, "fsdp": 2}, "dense", "adamw"),
]  # fmt: skip


@pytest.mark.proof(15)
@pytest.mark.parametrize(("axes", "shape", "optimizer"), LONG, ids=str)
def test_runs_of_twenty_steps_go_where_those_of_one_process_do(world, axes, shape, optimizer):
    print(f"after twenty steps within {goes_where_one_does(world, axes, shape, optimizer):.1e}")


@pytest.fixture(scope="module")
def eight():
    found = World(8, "mesh_cases")
    yield found
    found.close()


@pytest.mark.proof(30)
@pytest.mark.parametrize(("axes", "shape", "optimizer", "lora"), [
    ({"fsdp": 2, "ep": 2, "cp": 2}, "latent", "adamw", False), ({"fsdp": 2, "ep": 2, "cp": 2}, "experts", "muon", True),
    ({"replicate": 2, "fsdp": 2, "ep": 2}, "latent", "muon", False),
    ({"replicate": 2, "fsdp": 2, "cp": 2}, "dense", "adamw", False),
], ids=str)  # fmt: skip
def test_meshes_of_three_axes_agree_with_one_process(eight, axes, shape, optimizer, lora):
    """As recipes/cluster.toml has them, at the size of eight."""
    learns_what_one_does(eight, axes, shape, optimizer, lora)


@pytest.mark.proof(75)
def test_ranks_that_are_killed_at_any_moment_of_saving_lose_nothing(world, tmp_path):
    """What is there is the checkpoint before or the new one, whole; and whoever takes it up ends with the same bits."""

    def run(directory, *given):
        return world.run(2, "saves", {"ep": 2}, directory, *given)

    run(tmp_path / "first", 1)
    shutil.copytree(tmp_path / "first", tmp_path / "whole")
    told = run(tmp_path / "whole", 2)
    wanted, events = told[0][0] | run(tmp_path / "whole", 3)[0][0], [each for _, each in told]
    assert min(events) > 2
    places = [(who, event) for who in (0, 1) for event in range(1, events[who] + 1)]
    for who, event in random.Random(0).sample(places, min(len(places), proofs.often(6, 20))):
        directory = tmp_path / f"{who}-{event}"
        shutil.copytree(tmp_path / "first", directory)
        with pytest.raises(AssertionError, match=f"rank {who}: has ended"):
            run(directory, 2, who, event)
        there = checkpoint.load_latest(directory)["trainer"]["version"]
        found = run(directory, 3)[0][0]
        assert there in (1, 2) and found == {version: wanted[version] for version in range(there, 4)}
        assert len(list(directory.iterdir())) == 2, "one checkpoint and its shards"

"""Ranks of a mesh, each a process: what one process learns, from shards. The full cross product is in tests/prove."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from mesh_cases import SHAPES, config_for, one_step, ranks_at_work, scale, steps, trainer_of
from safetensors.torch import load_file

from etude.errors import ConfigError
from etude.models.checkpoint import save_checkpoint
from etude.trainer.mesh.opening import open_mesh
from etude.trainer.mesh.sizes import Sizes
from etude.weights.manifest import root_of

GRADIENT = 1e-6
"""Of a parameter and of the loss, relative to its length, in fp32."""
STEP = 1e-4
"""Of what a step has moved a parameter by: an optimizer divides by a gradient's size, and by its error with it."""
RUN = 1e-2
"""And over twenty steps, each from the weights of the one before: a policy has bf16 values, and one that falls to the
other side of a tie differs by 0.4%."""
FIGURES = {"rel": 1e-4, "abs": 1e-6}
"""Of what a step says. Nothing but gradients and losses is held to `GRADIENT`; docs/ranks.md says so."""
alone = lru_cache(one_step)


world = pytest.fixture(ranks_at_work, scope="module", name="world")
pytestmark = pytest.mark.timeout(3600)
"""Ranks that hang are found by their world, whatever the clock says."""


def largest_error(found, wanted):
    assert found.keys() == wanted.keys()
    return max(
        float(np.linalg.norm(found[name] - each) / max(np.linalg.norm(each), 1e-12)) for name, each in wanted.items()
    )


def learns_what_one_does(world, axes, shape, optimizer, lora):
    gradients, moved, told, seen = alone(shape, optimizer, lora)
    for theirs in world.run(Sizes.of(axes).world, "one_step", shape, optimizer, lora, axes):
        assert largest_error(theirs[0], gradients) < GRADIENT
        assert largest_error(theirs[1], moved) < STEP
        assert theirs[2].keys() == told.keys()
        for name, value in told.items():
            assert theirs[2][name] == pytest.approx(value, **FIGURES), name
        for name, column in seen._asdict().items():
            np.testing.assert_allclose(getattr(theirs[3], name), column, rtol=1e-4, atol=1e-5, err_msg=name)
    assert max(np.linalg.norm(each) for each in moved.values()) > 0


CASES = [
    ({"fsdp": 1}, "experts", "muon", False),
    ({"ep": 2}, "latent", "adamw", True),
    ({"cp": 2}, "experts", "adamw", False),
    ({"replicate": 2}, "latent", "muon", False),
    ({"fsdp": 2, "ep": 2}, "experts", "muon", False),
    ({"cp": 2, "ep": 2}, "latent", "muon", True),
    ({"replicate": 2, "fsdp": 2}, "dense", "muon", True),
    ({"fsdp": 4}, "experts", "muon", True),
]  # fmt: skip


def called(value):
    if isinstance(value, dict):
        return " ".join(f"{axis}{size}" for axis, size in value.items())
    return {True: "lora", False: "whole"}.get(value, value)


@pytest.mark.parametrize(("axes", "shape", "optimizer", "lora"), CASES, ids=called)
def test_gradients_steps_and_figures_are_those_of_one_process(world, axes, shape, optimizer, lora):
    learns_what_one_does(world, axes, shape, optimizer, lora)


def test_groups_that_are_over_leave_no_threads_behind(world):
    """Of four meshes, five groups each."""
    cases = [({"fsdp": 2, "ep": 2}, "experts", "muon"), ({"cp": 2, "ep": 2}, "latent", "adamw")]
    left = []
    for _ in range(2):
        for axes, shape, optimizer in cases:
            world.run(4, "one_step", shape, optimizer, False, axes)
        left.append(world.run(4, "threads"))
    assert left[0] == left[1]


def test_a_mesh_in_bf16_computes_nearly_the_same(world):
    """Weights and activations are bf16, what is added up is fp32."""
    wanted = alone("experts", "adamw", False)[0]
    exact = world.run(2, "bf16_gradients", "experts", {"fsdp": 2}, "fp32")[0]
    found = world.run(2, "bf16_gradients", "experts", {"fsdp": 2}, "bf16")[0]
    assert largest_error(exact, wanted) < GRADIENT
    assert 100 * GRADIENT < largest_error(found, wanted) < 0.2


def goes_where_one_does(world, axes, shape, optimizer):
    """For twenty steps; returns the error."""
    moved, told = steps(shape, optimizer, False, 1, 20)
    assert max(line["parity_tokens"] for line in told) > 0, "older versions are compared, too"
    errors = []
    for theirs, line in world.run(Sizes.of(axes).world, "steps", shape, optimizer, False, axes, 20):
        errors.append(largest_error(theirs, moved))
        assert [each["loss"] for each in line] == pytest.approx([each["loss"] for each in told], rel=1e-3, abs=1e-5)
    assert max(errors) < RUN
    return max(errors)


def test_a_run_of_twenty_steps_goes_where_that_of_one_process_does(world):
    """tests/prove has other shapes, axes and the other optimizer."""
    goes_where_one_does(world, {"fsdp": 2, "ep": 2}, "experts", "muon")


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(("axes", "shape", "looks"), [
    ({"fsdp": 2}, "experts", 0), ({"cp": 2}, "latent", 0), ({"ep": 2}, "experts", 2), ({"ep": 2}, "latent", 1),
])  # fmt: skip
def test_a_step_of_a_mesh_looks_at_a_value_once_a_mixture_and_forward(world, axes, shape, looks, recomputed):
    """In which tokens go to their experts; so twice where blocks are computed once more in the backward."""
    for pieces, seen in world.run(2, "looks", shape, axes, recomputed):
        assert sum(seen.values()) == looks * pieces * (1 + recomputed), seen


@pytest.mark.parametrize(("shape", "lora", "axes"), [
    ("experts", False, {"fsdp": 2, "ep": 2}), ("latent", True, {"cp": 2, "ep": 2}),
    ("experts", True, {"replicate": 2, "ep": 2}),
])  # fmt: skip
def test_a_version_from_shards_is_that_of_the_whole(world, shape, lora, axes):
    """Each array is with one rank; its root is that of one process which holds the same weights."""
    told = world.run(4, "published", shape, lora, axes)
    bits = {name: array for part, _ in told for name, array in part.items()}
    assert sum(len(part) for part, _ in told) == len(bits)
    alone = trainer_of(shape, config_for(shape, "adamw", lora, frozen=() if lora else ("embeddings",)))
    alone.trained.load_state_dict({name: torch.from_numpy(each) for name, each in told[0][1].items()})
    wanted = alone.trained.export()
    assert bits.keys() == wanted.keys() and root_of(bits) == root_of(wanted)
    assert ("adapted.root" in bits) == lora
    shares = [sum(array.nbytes for array in part.values()) for part, _ in told]
    assert max(shares) < 0.6 * sum(shares)


@pytest.mark.parametrize(("shape", "optimizer", "lora", "form"), [
    ("experts", "muon", False, "fp32"), ("latent", "adamw", True, "bf16"),
])  # fmt: skip
def test_what_four_ranks_saved_two_take_up_and_then_one(world, tmp_path, shape, optimizer, lora, form):
    """Bit for bit, moments too; and four that take it up go on as four that never stopped."""
    first, second = "step-00000001.ckpt", "step-00000002.ckpt"
    wide, narrow = {"fsdp": 2, "ep": 2}, {"ep": 2}

    def run(axes, take, save):
        given = (shape, optimizer, lora, axes, form, tmp_path, take, save)
        return world.run(Sizes.of(axes).world, "goes_on", *given)[0]

    saved = run(wide, None, True)[1]
    taken, after_two = run(narrow, first, True)
    assert same(taken, saved) and len(taken) > 2 * len(alone(shape, optimizer, lora)[1]) - 1
    assert same(run({"fsdp": 1}, second, False)[0], after_two)
    assert same(run(wide, first, False)[1], run(wide, first, False)[1])
    kinds = sorted(path.name.partition(".")[2].partition("-")[0] for path in tmp_path.iterdir())
    assert kinds == ["ckpt", "ckpt", "shards", "shards"]


def same(found, wanted):
    return found.keys() == wanted.keys() and all(np.array_equal(each, wanted[name]) for name, each in found.items())


def test_shards_that_nobody_names_go_and_changed_ones_are_refused(world, tmp_path):
    given = ("experts", "adamw", False, {"ep": 2}, "fp32", tmp_path)
    (tmp_path / "step-00000001.shards-0123").mkdir()
    (tmp_path / "step-00000009.shards-4567").mkdir()
    world.run(2, "goes_on", *given, None, True)
    [shards] = tmp_path.glob("*.shards-*")
    victim = next(shards.glob("*.distcp"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(
        AssertionError,
        match=f"{victim.name}: missing, torn or changed .* remove .*/step-00000001.ckpt, and the run begins anew",
    ):
        world.run(2, "goes_on", *given, "step-00000001.ckpt", False)


def test_a_rank_that_cannot_write_ends_the_save_on_all_by_its_name(world, tmp_path):
    for said in world.run(2, "cannot_write", tmp_path):
        assert "cannot be written (rank 1: " in said and "the older checkpoints are whole" in said


@pytest.mark.parametrize(("shape", "axes"), [("experts", {"fsdp": 2, "ep": 2}), ("latent", {"ep": 4})])
def test_a_model_is_read_and_written_by_ranks_as_by_one(world, tmp_path, shape, axes):
    save_checkpoint(scale.base_for(SHAPES[shape]), tmp_path / "base")
    world.run(4, "written", shape, False, axes, tmp_path / "base", tmp_path)
    held = [load_file(tmp_path / name / "model.safetensors") for name in ("base", "model")]
    assert held[0].keys() == held[1].keys() and all(torch.equal(each, held[1][name]) for name, each in held[0].items())


@pytest.mark.parametrize(("shape", "axes", "said"), [
    ("experts", {"cp": 4}, "cp = 4 does not divide the model's 4 heads and 2 heads of keys"),
    ("experts", {"ep": 3}, "ep = 3 does not divide the model's 4 experts"),
    ("dense", {"ep": 2}, "ep = 2, but the model has no experts; give fsdp those ranks"),
])  # fmt: skip
def test_a_mesh_that_does_not_fit_a_model_is_refused(shape, axes, said):
    with pytest.raises(ConfigError, match=f"^trainer.ranks: {said}"):
        Sizes.of(axes).require(SHAPES[shape])


def test_other_kernels_than_torchs_are_refused(monkeypatch):
    monkeypatch.setenv("ETUDE_KERNELS", "exact")
    with pytest.raises(ConfigError, match="ETUDE_KERNELS=exact: the ranks of a mesh compute with torch's operations"):
        open_mesh(config_for("dense", "adamw", False, {"fsdp": 1}), Path("nowhere"))


def test_what_a_plan_has_to_beat_is_a_line_in_a_ranks_own_tokens():
    known = [({"fsdp": 2}, 512), ({"cp": 2}, 1024), ({"ep": 2}, 2048)]
    line = scale.line_in_tokens(known, [0.2, 0.2, 0.5])  # 0.1 s, and 0.2 s for 1,024 tokens
    assert line({"cp": 2, "ep": 2}, 4096) == pytest.approx(0.5) and line({"fsdp": 4}, 1024) == pytest.approx(0.3)


def test_rows_are_torchs_chunks_and_experts_go_by_their_numbers():
    sizes = Sizes.of({"replicate": 2, "fsdp": 2, "ep": 2})
    whole = [torch.arange(5).chunk(4)[at].tolist() if at < 3 else [] for at in (0, 1, 2, 3)]
    assert [list(range(*sizes.rows(5, rank, False))) for rank in range(8)] == 2 * whole
    assert [tuple(sizes.rows(8, rank, True)) for rank in range(4)] == [(0, 2), (4, 6), (2, 4), (6, 8)]

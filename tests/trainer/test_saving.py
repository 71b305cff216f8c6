"""Checkpoints that are written while the trainer goes on."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scale

from etude.deadlines import VARIABLE
from etude.errors import DeadlineExceeded
from etude.models.config import ModelConfig
from etude.trainer.checkpoint import checkpoints, load_latest, save
from etude.trainer.config import OptimizerConfig
from etude.trainer.saving import Checkpoints, Saving, copied

torch.set_num_threads(1)
SHAPE = ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16)
HELD_S = 120.0


@pytest.fixture(params=["muon", "adamw"])
def trainer(request):
    """That has made a step, and so has moments."""
    made = scale.trainer_for(scale.base_for(SHAPE), "exact", optimizer=OptimizerConfig(name=request.param, lr=0.01))
    made.step(batch_for(made))
    return made


def batch_for(trainer):
    return scale.batch_for(SHAPE.model_copy(update={"max_context": 64}), 150, version=int(trainer.version))


def tensors(state):
    """All of a state, in its order."""
    if isinstance(state, torch.Tensor):
        return [state.detach().clone()]
    inside = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for each in inside for tensor in tensors(each)]


def same(one, other):
    return [torch.equal(*pair) for pair in zip(tensors(one), tensors(other), strict=True)]


@pytest.fixture
def held(trainer, tmp_path):
    """A checkpoint whose writer is held until it is told to go on."""
    saving, may_write = Saving(trainer), threading.Event()

    def finish(state):
        assert may_write.wait(HELD_S)
        save(tmp_path, 1, {"trainer": state})

    assert saving.put(None, finish) == pytest.approx(0, abs=50)
    yield saving, may_write
    may_write.set()
    saving.close()


def test_a_step_goes_on_beside_a_checkpoint_which_holds_what_was_before_it(trainer, held, tmp_path):
    saving, may_write = held
    before = copied(trainer.state_dict())
    assert trainer.step(batch_for(trainer))["version"] == 2
    assert checkpoints(tmp_path) == []
    may_write.set()
    saving.wait()
    found = load_latest(tmp_path)["trainer"]
    assert found["version"] == 1 and all(same(found, before)) and len(tensors(found)) > 2 * len(found["masters"]) - 1
    assert not any(same(found["masters"], trainer.state_dict()["masters"]))


def test_the_next_one_waits_for_room_and_says_for_how_long(held):
    saving, may_write = held
    threading.Timer(0.1, may_write.set).start()
    assert saving.put(None) > 0 and may_write.is_set()


def test_a_writer_that_hangs_is_an_error_that_names_it(trainer, monkeypatch):
    monkeypatch.setenv(VARIABLE, "1e-4")
    saving, may_write = Saving(trainer), threading.Event()
    saving.put(None, lambda state: may_write.wait(HELD_S) and None)
    for ask in (saving.wait, lambda: saving.put(None)):
        with pytest.raises(DeadlineExceeded, match=r"a checkpoint to be on the disk.*rollouts\.checkpoint_every"):
            ask()
    may_write.set()
    saving.close()


def test_nobody_is_told_of_a_checkpoint_before_it_is_whole(trainer, tmp_path):
    kept = Checkpoints(trainer, tmp_path)
    assert kept.on_disk(3).step == 0, "none is on its way"
    kept.taken_up(4)
    kept.save(5, {"controller": {"line": 5}})
    found = kept.on_disk(5)
    assert (found.step, kept.written) == (5, 1) and found.saved_ms > 0
    assert load_latest(tmp_path)["controller"] == {"line": 5}
    kept.close()


def test_one_that_cannot_be_written_stays_an_error_and_leaves_the_older_ones(trainer, tmp_path):
    kept = Checkpoints(trainer, tmp_path)
    kept.save(1, {})
    assert kept.on_disk(1).step == 1
    trainer.step(batch_for(trainer))
    (tmp_path / "step-00000002.ckpt.partial").mkdir()
    kept.save(2, {})
    for ask in (lambda: kept.on_disk(2), lambda: kept.save(3, {})):
        with pytest.raises(IsADirectoryError, match="step-00000002"):
            ask()
    assert kept.on_disk(1).step == 1 and load_latest(tmp_path)["trainer"]["version"] == 1
    kept.close()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_batch_without_numbers_spoils_neither_the_weights_nor_the_checkpoint(name, tmp_path):
    optimizer = OptimizerConfig(name=name, lr=0.01, format="bf16")
    trainer = scale.trainer_for(scale.base_for(SHAPE), "torch", optimizer=optimizer, divergence_target=0.001)
    kept = Checkpoints(trainer, tmp_path)
    assert not kept.are_due(1), "the base is there anyway"
    trainer.step(batch_for(trainer))
    assert kept.are_due(1) and not kept.are_due(2)
    kept.save(1, {})
    before, batch = copied(trainer.state_dict()), batch_for(trainer)
    unknown = np.where(batch.loss_mask, np.float32(np.nan), batch.behaviour_logprobs)
    line = trainer.step(replace(batch, behaviour_logprobs=unknown))
    assert np.isnan(line["grad_norm"]) and line["rate_scale"] == 0 and trainer.skipped == 1
    assert all(same(trainer.state_dict()["masters"], before["masters"])) and not kept.are_due(1)
    assert all(same(trainer.state_dict()["optimizer"], before["optimizer"]))
    trainer.step(batch_for(trainer))
    assert (
        trainer.version == 2
        and kept.are_due(2)
        and all(each.isfinite().all() for each in trainer.trained.trained.values())
    )
    kept.close()

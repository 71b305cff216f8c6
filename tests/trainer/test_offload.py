"""Momentum and moments that are on the host between steps: the same values, and no room taken on the device."""

import copy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scale
from test_placements import asked, meta_adamw, trainer_on  # noqa: F401 (a fixture)
from test_placements import batch_for as placed_batch

from etude.errors import ConfigError
from etude.kernels.choice import choose
from etude.models.config import ModelConfig
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.mesh.rehearsal import CHECKPOINT, MOMENTS_THERE, rehearse
from etude.trainer.step import Trainer

torch.set_num_threads(1)
SHAPE = ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16)
OPTIMIZERS = [(name, form) for name in ("muon", "adamw") for form in ("fp32", "bf16")]


def trainer_that_keeps(where, name, form, kernels="torch"):
    decoder = scale.base_for(SHAPE).place(choose(kernels, "cpu"))
    config = OptimizerConfig(name=name, lr=0.01, format=form, keep=where)
    return Trainer(decoder, TrainerConfig(parity_tokens=0, optimizer=config))


def batch_for(version):
    return scale.batch_for(SHAPE.model_copy(update={"max_context": 64}), 150, version, version)


def held(trainer):
    """All that is trained, and what the optimizer keeps of it."""
    states = [state for each in trainer.optimizer.optimizers for state in each.state.values()]
    kept = [value for state in states for value in state.values()]
    return [each.detach().clone() for each in (*trainer.trained.trained.values(), *kept)]


@pytest.mark.parametrize(("name", "form"), OPTIMIZERS)
def test_steps_have_the_same_bits_and_so_have_those_of_a_run_that_goes_on(name, form):
    there, here = (trainer_that_keeps(where, name, form) for where in ("host", "device"))
    told = []
    for version in range(3):
        told = [each.step(batch_for(version)) for each in (there, here)]
    assert all(map(torch.equal, held(there), held(here)))
    moments = sum(each.nbytes for each in held(there)) - sum(each.nbytes for each in there.trained.trained.values())
    assert [line["used"]["offloaded_bytes"] for line in told] == [moments, 0]
    other = trainer_that_keeps("host", name, form)
    other.load_state_dict(copy.deepcopy(here.state_dict()))
    for each in (here, other):
        each.step(batch_for(3))
    assert all(map(torch.equal, held(other), held(here)))


def test_a_lost_gradient_leaves_all_of_it_as_it_was():
    trainer = trainer_that_keeps("host", "muon", "fp32")
    trainer.step(batch_for(0))
    before = held(trainer)
    leaf = next(iter(trainer.trained.leaves.values()))
    leaf.register_hook(lambda gradient: gradient * float("nan"))
    trainer.step(batch_for(1))
    assert trainer.skipped == 1 and all(map(torch.equal, held(trainer), before))


class Bus(TorchDispatchMode):
    """What crosses from one device to another, in bytes by where it goes. A device without values has none to bring."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ == "copy_" and args[0].device != args[1].device:
            self.bytes[args[0].device.type] += args[1].nbytes
            return args[0]
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("meta_adamw")
@pytest.mark.parametrize(("name", "form"), OPTIMIZERS)
def test_between_steps_nothing_of_it_is_on_the_device(name, form):
    """A whole step, twice: the optimizer computes there, and what it keeps lies on the host and crosses both ways."""
    trainer = trainer_on("experts", "torch", "meta", optimizer=OptimizerConfig(name=name, format=form, keep="host"))
    assert {each.device.type for each in trainer.trained.trained.values()} == {"meta"}
    for _ in range(2):
        with Bus() as bus:
            asked(trainer, placed_batch("experts"))
        states = [state for each in trainer.optimizer.optimizers for state in each.state.values()]
        kept = [value for state in states for value in state.values()]
        assert len(states) == len(trainer.trained.trained) and {each.device.type for each in kept} == {"cpu"}
        assert bus.bytes["cpu"] == trainer.optimizer.offloaded_bytes == sum(each.nbytes for each in kept)
    assert bus.bytes["meta"] >= bus.bytes["cpu"], "the batch goes there, too"


@pytest.mark.parametrize("axes", [1, {"fsdp": 2, "ep": 2}], ids=["whole", "mesh"])
def test_a_rehearsal_counts_it_with_the_host_and_not_with_the_device(axes):
    def played(where):
        optimizer = OptimizerConfig(name="adamw", lr=1e-3, keep=where)
        return rehearse(TrainerConfig(ranks=axes, parity_tokens=0, piece_tokens=64, optimizer=optimizer), SHAPE)

    there, here = played("host"), played("device")
    moments = here.held["moments"]
    assert there.on_host[MOMENTS_THERE] == moments and there.over_the_bus == 2 * moments
    assert there.on_host[CHECKPOINT] == here.on_host[CHECKPOINT] == moments + here.held["masters"]
    assert MOMENTS_THERE not in here.on_host and here.over_the_bus == 0
    for kinds in (there.held, there.in_pieces, there.in_optimizer, there.most):
        assert "moments" not in kinds and MOMENTS_THERE not in kinds
    assert sum(here.in_optimizer.values()) - sum(there.in_optimizer.values()) > 0.6 * moments


def test_on_the_host_it_is_refused_as_it_would_change_nothing():
    with pytest.raises(ConfigError, match=r'trainer.optimizer.keep = "host": this trainer computes on the host'):
        trainer_that_keeps("host", "adamw", "fp32", "exact")

"""A step of the trainer by other kernels and on another device: the same learnt, and no value read.

The device is torch's `meta`, which has shapes and no values: whatever asks for a value there raises, and so does what
mixes its tensors with those of the host.
"""

import contextlib
import copy
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import scale

from etude.kernels.choice import choose
from etude.models.config import LatentConfig, ModelConfig
from etude.records import Version
from etude.trainer import activations
from etude.trainer.config import GateConfig, KLConfig, LossConfig, OptimizerConfig, TrainerConfig
from etude.trainer.distil import distil_hints
from etude.trainer.documents import Document
from etude.trainer.feedback import HintExample
from etude.trainer.losses import shares_of
from etude.trainer.optimizers import build_optimizer
from etude.trainer.packing import segment_lengths
from etude.trainer.step import Trainer
from etude.trainer.supervised import supervised_loss

torch.set_num_threads(1)
SHAPES = {
    "experts": ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16),
    "latent": ModelConfig(
        vocab_size=96, width=32, layers=2, heads=4, dense_layers=(0,), dense_width=32, experts=8, expert_width=16,
        router="sigmoid", expert_groups=2, groups_per_token=1, shared_width=16,
        latent=LatentConfig(query_rank=16, rank=12, plain_width=8, rope_width=4, value_width=6),
    ),
    "dense": ModelConfig(vocab_size=96, width=32, layers=2, heads=4, head_width=8, experts=0, dense_width=32),
}  # fmt: skip
LORA = {"experts": {"attention": 4, "experts": 4}, "latent": {"attention": 4}, "dense": {"attention": 4, "dense": 4}}
EVERYTHING = {
    "loss": LossConfig(kl=KLConfig(estimator="k3"), entropy_bonus=0.01, gate=GateConfig(band=(0.01, 100))),
    "divergence_target": 0.001,
    "piece_tokens": 100,
}
GRADIENT = 2e-5
"""Of a parameter, relative to its length, and of the loss: sums of fp32 in another order."""
STEP = 1e-3
"""Of what a step has moved a parameter by: an optimizer divides by a gradient's size, and by its error with it."""


def batch_for(shape, tokens=300):
    return scale.batch_for(SHAPES[shape].model_copy(update={"max_context": 64}), tokens)


def trainer_on(shape, kernels, device="cpu", **changes):
    decoder = scale.base_for(SHAPES[shape]).place(choose(kernels, device))
    return Trainer(decoder, TrainerConfig(**({"parity_tokens": 0} | changes)))


def asked(trainer, batch, hints=()):
    return trainer.ask(batch, shares_of(batch, trainer.config.loss), 0.5, hints)


def optimizer_config(name, lora, **more):
    """Muon has all that is adapted, and AdamW's eps is refused then."""
    return OptimizerConfig(name=name, lr=0.01, **({} if lora and name == "muon" else more))


def masters(trainer):
    return {name: each.detach().clone() for name, each in trainer.trained.trained.items()}


NUMERICS = [("torch", shape, lora) for shape in SHAPES for lora in (False, True)]
NUMERICS += [("triton", "experts", False), ("triton", "latent", False), ("triton", "dense", True)]  # 10 s each


@pytest.mark.parametrize(("kernels", "shape", "lora"), NUMERICS)
def test_losses_and_gradients_are_those_of_the_exact_kernels(kernels, shape, lora):
    changes = {"lora": LORA[shape] if lora else None, "loss": EVERYTHING["loss"]}
    batch = batch_for(shape, 300 if kernels == "torch" else 70)
    assert len(set(segment_lengths(batch))) > 1 and (batch.routed_mask.any() or shape == "dense")
    wanted, found = (scale.gradients(trainer_on(shape, name, **changes), batch) for name in ("exact", kernels))
    assert scale.largest_error(found, wanted) < GRADIENT


def test_a_gradient_that_is_wrong_by_a_thousandth_is_seen():
    wanted = scale.gradients(trainer_on("dense", "exact"), batch_for("dense"))
    wrong = wanted | {"blocks.0.attention.q_proj.weight": wanted["blocks.0.attention.q_proj.weight"] * 1.001}
    assert scale.largest_error(wrong, wanted) > GRADIENT


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
def test_steps_move_the_weights_as_with_the_exact_kernels(shape, optimizer, lora):
    changes = {"optimizer": optimizer_config(optimizer, lora, eps=1e-3), "lora": LORA[shape] if lora else None}
    batch, moved, told = batch_for(shape), [], []
    for kernels in ("exact", "torch"):
        trainer = trainer_on(shape, kernels, **changes)
        before = masters(trainer)
        told.append(trainer.step(batch))
        moved.append({name: each - before[name] for name, each in masters(trainer).items()})
    assert scale.largest_error(moved[1], moved[0]) < STEP
    assert max(float(each.norm()) for each in moved[0].values()) > 0
    numbers = [{name: value for name, value in line.items() if isinstance(value, float)} for line in told]
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_an_optimizer_on_a_device_is_the_same_optimizer(name):
    """The same gradients, some of experts that saw no token, changing rates, and a step that is lost."""
    ends, config = [], OptimizerConfig(name=name, lr=0.02)
    for kernels in ("exact", "torch"):
        decoder = scale.base_for(SHAPES["experts"]).place(choose(kernels))
        optimizer = build_optimizer(decoder.named_parameters(), config, decoder.placement)
        generator = torch.Generator().manual_seed(0)
        for number in range(5):
            for each in decoder.parameters():
                each.grad = torch.randn(each.shape, generator=generator) * (float("nan") if number == 2 else 1)
                if each.dim() == 3 and number != 2:
                    each.grad[number % 4] = 0
            optimizer.set_scale(torch.tensor(1 / (1 + number)))
            before = [each.detach().clone() for each in decoder.parameters()]
            optimizer.step(torch.tensor(number == 2))
            same = [torch.equal(*pair) for pair in zip(before, decoder.parameters(), strict=True)]
            assert all(same) if number == 2 else not any(same)
        ends.append((dict(decoder.named_parameters()), optimizer.state_dict()))
    assert scale.largest_error(ends[1][0], ends[0][0]) < 1e-6
    for one, other in zip(ends[0][1], ends[1][1], strict=True):  # a checkpoint looks the same
        assert one["state"].keys() == other["state"].keys()
        for at in one["state"]:
            assert {key: float(value.sum()) for key, value in other["state"][at].items()} == pytest.approx(
                {key: float(value.sum()) for key, value in one["state"][at].items()}, rel=1e-3, abs=1e-4
            )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_checkpoint_of_one_is_taken_up_by_the_other(optimizer):
    changes = {"optimizer": OptimizerConfig(name=optimizer, lr=0.01, eps=1e-3)}
    batch, ends = batch_for("experts"), []
    for first, then in (("exact", "torch"), ("torch", "exact"), ("exact", "exact")):
        trainer, other = trainer_on("experts", first, **changes), trainer_on("experts", then, **changes)
        trainer.step(batch)
        other.load_state_dict(copy.deepcopy(trainer.state_dict()))
        other.step(batch)
        ends.append(masters(other))
        assert other.version == 2
    for end in ends[:2]:
        assert scale.largest_error(end, ends[2]) < STEP


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_read_within_a_step(shape, optimizer, lora):
    changes = EVERYTHING | {"optimizer": optimizer_config(optimizer, lora), "lora": LORA[shape] if lora else None}
    trainer, batch = trainer_on(shape, "torch", **changes), batch_for(shape)
    with scale.Reads() as seen:
        found = asked(trainer, batch)
    assert +seen == {}
    with scale.Reads() as seen:
        trainer._read(found, batch, shares_of(batch, trainer.config.loss))
    assert seen.total() > 0, "the figures are read, and then"


def test_the_exact_kernels_are_seen_to_read():
    trainer, batch = trainer_on("experts", "exact"), batch_for("experts")
    with scale.Reads() as seen:
        asked(trainer, batch)
    assert seen["Tensor.numpy"] > 100


class Looking(torch.autograd.Function):
    """Looks at its gradient in a backward."""

    @staticmethod
    def forward(ctx, x, look):
        ctx.look = look
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.look(gradient)
        return gradient, None


ONE, TWO = torch.tensor(1), torch.tensor([2])
LOOKS = {
    "item": lambda x: x.sum().item(), "tolist": lambda x: x.tolist(), "bool": lambda x: bool((x > 0).all()),
    "nonzero": lambda x: x.nonzero(), "mask": lambda x: x[x > 0], "bincount": lambda x: torch.bincount(x.long()),
    "unique": lambda x: x.unique(), "cpu": lambda x: x.cpu(), "float": lambda x: float(x[0]),
    "equal": lambda x: torch.equal(x, x), "allclose": lambda x: torch.allclose(x, x),
    "repeated": lambda x: x.repeat_interleave(x.long()), "numpy": lambda x: x.numpy(), "asarray": np.asarray,
    "array": np.array, "dlpack": np.from_dlpack, "repr": repr, "text": lambda x: f"{x}", "in": lambda x: 1.0 in x,
    "slice": lambda x: x[:ONE], "tensor_split": lambda x: torch.tensor_split(x, TWO), "where": lambda x: torch.where(x),
    "one_hot": lambda x: torch.nn.functional.one_hot(x.long()), "masked_select": lambda x: x.masked_select(x > 0),
    "to": lambda x: x.to("meta").to("cpu"), "copy": lambda x: torch.empty(3).copy_(x.to("meta", non_blocking=True)),
    "pageable": lambda x: x.to("meta"),
}  # fmt: skip


def looks(look, in_backward):
    """How often it was counted; `meta` has no values to hand over, and says so when it is asked."""
    x = torch.ones(3, requires_grad=in_backward)
    with scale.Reads() as seen, contextlib.suppress(NotImplementedError):
        if in_backward:
            Looking.apply(x, look).sum().backward()
        else:
            look(x)
    return seen.total()


@pytest.mark.parametrize("in_backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("way", LOOKS)
def test_each_way_to_look_is_counted(way, in_backward):
    assert looks(LOOKS[way], in_backward) > 0


@pytest.mark.parametrize("in_backward", [False, True], ids=["forward", "backward"])
def test_a_look_is_counted_once_and_what_is_none_not_at_all(in_backward):
    for way in ("item", "tolist", "bool", "float", "numpy", "asarray", "cpu", "equal"):
        assert looks(LOOKS[way], in_backward) == 1, way
    counts = torch.tensor([1, 2, 0])
    for none in (lambda x: x.repeat_interleave(counts, output_size=3), lambda x: x[counts], lambda x: x.tensor_split(3),
                 lambda x: x.to("meta", non_blocking=True), lambda x: x * 2):  # fmt: skip
        assert looks(none, in_backward) == 0


@pytest.fixture
def meta_adamw(monkeypatch):
    """torch's fused AdamW knows no `meta`; here it takes tensors of that device, and those alone."""

    def shapes_only(*given, found_inf, **options):
        lists = [each for each in (*given, [options["lr"], found_inf]) if isinstance(each, list)]
        assert {tensor.device.type for each in lists for tensor in each} == {"meta"}

    adam = importlib.import_module("torch.optim.adam")  # the package calls its functions the same
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *given: None)
    library = torch.library.Library("aten", "IMPL", "Meta")
    library.impl("_fused_adamw_.tensor_lr", shapes_only)
    yield
    library._destroy()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_step_runs_on_a_device_without_values(shape, optimizer, meta_adamw):
    """Every tensor of it is there: policy, masters, batch, replay, reference, hints, norms, moments."""
    teaching = {"credit": {"feedback": {}}} if shape == "experts" else {}
    changes = EVERYTHING | {"optimizer": OptimizerConfig(name=optimizer, lr=0.01)} | teaching
    trainer, batch = trainer_on(shape, "torch", "meta", **changes), batch_for(shape)
    hint = HintExample(np.arange(9, dtype=np.int32), np.arange(12, dtype=np.int32), 4)
    with scale.Reads() as seen:
        for _ in range(2):
            found = asked(trainer, batch, [hint] if teaching else ())
    assert +seen == {}, "nothing goes to the host, and for nothing that comes from there does it wait"
    assert {each.device.type for each in trainer.trained.trained.values()} == {"meta"}
    assert found.gradient.norm.device.type == found.divergence.device.type == "meta"
    assert bool(found.distilled) == bool(teaching)
    with pytest.raises((RuntimeError, NotImplementedError)):
        trainer._read(found, batch, shares_of(batch, trainer.config.loss))


def test_supervised_losses_run_on_a_device_without_values_too():
    further = SHAPES["experts"].model_copy(update={"further_token": True})
    decoder = scale.base_for(further).place(choose("torch", "meta"))
    losses = supervised_loss(decoder, documents(), 0.2, 0.01, 0.3)
    losses.total.backward()
    assert losses.by_source
    assert {each.device.type for each in (*losses[:3], *losses.by_source.values())} == {"meta"}


def documents():
    rng = np.random.default_rng(0)
    return [Document(rng.integers(0, 96, n).astype(np.int32), np.arange(n) > n // 3) for n in (11, 3, 40)]


def test_supervised_losses_are_those_of_the_exact_kernels():
    found = []
    for kernels in ("exact", "torch"):
        decoder = scale.base_for(SHAPES["experts"].model_copy(update={"further_token": True})).place(choose(kernels))
        losses = supervised_loss(decoder, documents(), 0.2, 0.01, 0.3)
        losses.total.backward()
        gradients = {name: each.grad for name, each in decoder.named_parameters() if each.grad is not None}
        found.append(gradients | {"loss": losses.total.detach()})
    assert scale.largest_error(found[1], found[0]) < GRADIENT


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation makes."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor):
                self.most = max(self.most, each.numel())
        return made


LARGE = SHAPES["dense"].model_copy(update={"vocab_size": 8192})


def parts(name):
    """A forward and backward of a trainer's kinds of loss, over a large vocabulary."""
    decoder = scale.base_for(LARGE).place(choose("torch"))
    if name == "policy":
        trainer, batch = Trainer(decoder, TrainerConfig(parity_tokens=0, **EVERYTHING)), batch_for("dense", 200)
        shares = torch.from_numpy(shares_of(batch, trainer.config.loss))
        return int(batch.loss_mask.sum()), lambda: list(trainer.forward_backward([batch], shares))
    if name == "supervised":
        return sum(len(each.token_ids) for each in documents()), lambda: supervised_loss(
            decoder, documents(), 0.2, 0.01
        ).total.backward()
    hint = HintExample(np.arange(60, dtype=np.int32), np.arange(80, dtype=np.int32), 40)
    return hint.length, lambda: distil_hints(decoder, [hint], 1.0, 1.0)


@pytest.mark.parametrize("name", ["policy", "supervised", "hints"])
def test_no_logits_of_all_sampled_tokens_are_ever_whole(name, monkeypatch):
    monkeypatch.setattr(activations, "VOCABULARY_BYTES", 4 * 8192 * 8)
    tokens, run = parts(name)
    with Largest() as seen:
        run()
    head = LARGE.vocab_size * LARGE.width
    assert seen.most == head < tokens * LARGE.vocab_size / 1.2, "the largest is the head, or its gradient"


def test_logits_in_parts_give_the_same_gradients(monkeypatch):
    batch, found = batch_for("experts"), []
    for limit in (2**30, 4 * 96 * 7):
        monkeypatch.setattr(activations, "VOCABULARY_BYTES", limit)
        found.append(scale.gradients(trainer_on("experts", "torch", loss=EVERYTHING["loss"]), batch))
    assert scale.largest_error(found[1], found[0]) < GRADIENT


def test_a_lost_gradient_leaves_everything_as_it_was(monkeypatch):
    trainer, batch = trainer_on("experts", "torch", optimizer=OptimizerConfig(lr=0.01)), batch_for("experts")
    trainer.step(batch)
    before, moments = masters(trainer), copy.deepcopy(trainer.optimizer.state_dict())
    for leaf in list(trainer.trained.leaves.values())[:3]:
        leaf.register_hook(lambda gradient: gradient * float("nan"))
    line = trainer.step(batch)
    assert np.isnan(line["grad_norm"]) and trainer.version == Version(1) and trainer.skipped == 1
    assert all(torch.equal(each, before[name]) for name, each in masters(trainer).items())
    for one, other in zip(moments, trainer.optimizer.state_dict(), strict=True):
        for at, state in one["state"].items():
            assert all(torch.equal(value, other["state"][at][key]) for key, value in state.items())

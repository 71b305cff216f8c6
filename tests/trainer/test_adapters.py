"""Adapters and frozen tensors: the steps they take, beside plain torch; what they are kept in, and publish."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from test_policy import CONFIG, DENSE, LATENT, rollouts, train_on

from etude.engine.adapted import ROOT, merged
from etude.errors import CheckpointError, ConfigError
from etude.models.adapters import INPUTS, OUTPUTS, SCALE, kind_of
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder
from etude.models.state import export_bits
from etude.records import Version
from etude.trainer import checkpoint
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, LossConfig, OptimizerConfig, TrainerConfig
from etude.trainer.optimizers import newton_schulz
from etude.trainer.packing import build_batch
from etude.trainer.step import Trainer
from etude.weights.delta import Held, make_delta
from etude.weights.manifest import Pack, root_of

torch.set_num_threads(1)
PLAIN = LossConfig(mask="off", importance_cap=float("inf"))
"""On policy its gradient is that of -sum(advantage * logp) / token_budget."""
ALL = {"attention": 2, "dense": 3, "experts": 2}


def trainer_of(shape=CONFIG, scale=1, **changes):
    decoder = Decoder(shape)
    decoder.initialise(0)
    with torch.no_grad():
        decoder.embed.weight.mul_(scale)
    settings = {"router_replay": False, "optimizer": OptimizerConfig(name="adamw", lr=0.01), "loss": PLAIN}
    return Trainer(decoder, TrainerConfig(**(settings | changes)))


def own_batch(trainer, seed=0):
    groups = rollouts(trainer, np.random.default_rng(seed), 20)
    values = [group_advantages(group, AdvantageConfig()) for group in groups]
    return build_batch(groups, values, trainer.version)


def plain_gradients(weights, shape, batch):
    """Of the loss, of a decoder with these weights {name: tensor that may have a graph}, by autograd alone."""
    decoder = Decoder(shape)
    ids, mask = torch.from_numpy(batch.token_ids).long(), torch.from_numpy(batch.loss_mask)
    lengths = np.unique(batch.segment_ids, return_counts=True)[1].tolist()
    given = ids, torch.from_numpy(batch.positions), PackedAttention(lengths)
    output = torch.func.functional_call(decoder, weights, given)
    head = weights["embed.weight"]
    at = mask.nonzero().squeeze(1)
    logps = (output.hidden_ND[at - 1] @ head.T).log_softmax(-1).gather(1, ids[at][:, None]).squeeze(1)
    loss = -(torch.from_numpy(batch.advantages)[at] * logps).sum() / LossConfig.token_budget
    loss.backward()


def adamw(value, gradient, lr=0.01, eps=1e-8):
    """The first step: both moments are unbiased."""
    return value - lr * gradient / (gradient.abs() + eps)


def muon(value, gradient, lr=0.01, momentum=0.95):
    rows, columns = value.shape[-2:] if value.dim() == 3 else value.shape[::-1]
    length = lr * max(1.0, columns / rows) ** 0.5
    whole = gradient.abs().flatten(-2).amax(-1) > 0
    return torch.where(whole[..., None, None], value - length * newton_schulz(gradient * (1 + momentum)), value)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", [CONFIG, DENSE, LATENT], ids=["experts", "dense", "latent"])
def test_a_step_of_adapters_is_what_plain_torch_makes_of_it(shape, optimizer):
    """W' = W + 2 B A by autograd, its factors moved by a few lines; B begins at zero, so two steps are taken."""
    kinds = {kind_of(name) for name, each in Decoder(shape).named_parameters()}
    lora = {kind: rank for kind, rank in ALL.items() if kind in kinds}
    trainer = trainer_of(shape, lora=lora, optimizer=OptimizerConfig(name=optimizer, lr=0.01))
    with torch.no_grad():  # as after some steps
        for name, factor in trainer.trained.factors.items():
            if name.endswith(OUTPUTS):
                factor.normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
    trainer.trained.round()
    base = {name: each.detach().clone() for name, each in trainer.policy.named_parameters()}
    base |= {name: each.float() for name, each in trainer.trained._base.items()}
    masters = {name: each.detach().clone() for name, each in trainer.trained.factors.items()}

    leaves = {name: each.bfloat16().float().requires_grad_() for name, each in masters.items()}
    weights = dict(base)
    for name in trainer.trained.ranks:
        a, b = leaves[name + INPUTS], leaves[name + OUTPUTS]
        exact = base[name] + SCALE * (b @ a if base[name].dim() == 2 else a @ b)
        weights[name] = exact + (exact.bfloat16().float() - exact).detach()  # rounded, straight through
    batch = own_batch(trainer)
    plain_gradients(weights, shape, batch)
    trainer.step(batch)

    assert len(trainer.trained.factors) == 2 * len(trainer.trained.ranks) > 0
    move = {"adamw": adamw, "muon": muon}[optimizer]
    for name, master in trainer.trained.factors.items():
        assert leaves[name].grad.abs().max() > 1e-7, name
        torch.testing.assert_close(master.detach(), move(masters[name], leaves[name].grad), atol=2e-5, rtol=1e-3)
    for name, each in trainer.policy.named_parameters():
        if name not in trainer.trained.ranks:
            assert torch.equal(each, base[name]), name
            continue
        a, b = (trainer.trained.factors[name + end].detach().bfloat16().float() for end in (INPUTS, OUTPUTS))
        served = (base[name] + SCALE * (b @ a if each.dim() == 2 else a @ b)).bfloat16().float()
        assert (served != each).float().mean() < 0.01, "but for sums in another order"
        torch.testing.assert_close(each.detach(), served, atol=1e-6, rtol=2**-7)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        (("embeddings", ":1"), lambda name: name.startswith(("embed.", "blocks.0."))),
        (("experts", "routers", "norms"), lambda name: kind_of(name) in ("experts", "routers", "norms")),
        (("-1:",), lambda name: name.startswith("blocks.1.")),
    ],
    ids=["lowest", "kinds", "last"],
)
def test_a_step_with_frozen_tensors_is_what_plain_torch_makes_of_it(frozen, still, optimizer):
    chosen = OptimizerConfig(name=optimizer, lr=0.01, **({"scalar_lr": 0.003} if optimizer == "muon" else {}))
    trainer = trainer_of(frozen=frozen, optimizer=chosen)
    masters = {name: each.detach().clone() for name, each in trainer.trained.masters.named_parameters()}
    rounded = {name: each.bfloat16().float() for name, each in masters.items()}
    leaves = {name: each.clone().requires_grad_(not still(name)) for name, each in rounded.items()}
    batch = own_batch(trainer)
    plain_gradients(leaves, CONFIG, batch)
    line = trainer.step(batch)
    held = [each.numel() for name, each in masters.items() if still(name)]
    assert line["used"]["frozen_weights"] == sum(held) > 0
    for name, master in trainer.trained.masters.named_parameters():
        policy = trainer.policy.get_parameter(name)
        if still(name):
            assert torch.equal(policy, rounded[name]) and policy.grad is None, name
            assert master is policy, "a frozen tensor has no master"
            continue
        by_muon = optimizer == "muon" and master.dim() > 1 and kind_of(name) not in ("embeddings", "routers")
        rate = 0.003 if optimizer == "muon" else 0.01
        gradient = leaves[name].grad
        wanted = muon(masters[name], gradient) if by_muon else adamw(masters[name], gradient, rate)
        torch.testing.assert_close(master.detach(), wanted, atol=2e-5, rtol=1e-3)
        assert torch.equal(policy, master.bfloat16().float())
    moments = sum(each.numel() for one in trainer.optimizer.optimizers for each in one.param_groups[0]["params"])
    assert moments == sum(each.numel() for each in masters.values()) - sum(held)


def test_adapters_and_unfrozen_layers_learn_what_is_rewarded():
    """Of a model whose head, which stays, can say one token far more often than another."""
    for changes in (
        {"lora": {"attention": 4, "experts": 4}, "optimizer": OptimizerConfig(name="adamw", lr=0.03)},
        {"frozen": ("embeddings", ":1"), "optimizer": OptimizerConfig(name="muon", lr=0.03)},
    ):
        trainer, rng = trainer_of(scale=6, **changes), np.random.default_rng(0)
        rewards = [train_on(trainer, rng)[0] for _ in range(40)]
        assert np.mean(rewards[:3]) < 0.5 < 0.75 < np.mean(rewards[-3:]), (changes, rewards)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_of_adapters_equals_one_that_never_stopped(tmp_path, optimizer):
    settings = {"lora": {"attention": 2}, "frozen": (":1",), "optimizer": OptimizerConfig(name=optimizer, lr=0.01)}
    straight, first, second = (trainer_of(**settings) for _ in range(3))
    rng = np.random.default_rng(1)
    expected = [train_on(straight, rng)[1]["loss"] for _ in range(6)]
    rng = np.random.default_rng(1)
    found = [train_on(first, rng)[1]["loss"] for _ in range(3)]
    path = checkpoint.save(tmp_path, first.version, {"trainer": first.state_dict()})
    second.load_state_dict(checkpoint.load_latest(tmp_path)["trainer"])
    found += [train_on(second, rng)[1]["loss"] for _ in range(3)]
    assert found == expected
    assert root_of(second.export()) == root_of(straight.export())
    whole = trainer_of(optimizer=OptimizerConfig(name=optimizer, lr=0.01))
    train_on(whole, np.random.default_rng(1))
    written = checkpoint.save(tmp_path / "whole", whole.version, {"trainer": whole.state_dict()})
    assert path.stat().st_size < written.stat().st_size / 4
    with pytest.raises(CheckpointError, match=r"trained other tensors.*trainer\.lora and trainer\.frozen"):
        second.load_state_dict(whole.state_dict())
    with pytest.raises(CheckpointError, match=r"is of \(2, 32\) in the checkpoint and of \(3, 32\) here"):
        trainer_of(**settings | {"lora": {"attention": 3}}).load_state_dict(first.state_dict())


def test_the_parity_check_sees_older_adapters():
    trainer, rng = trainer_of(lora={"attention": 2}), np.random.default_rng(3)
    old = rollouts(trainer, rng, 20)
    train_on(trainer, np.random.default_rng(4))
    batch = build_batch(old, [group_advantages(group, AdvantageConfig()) for group in old], trainer.version)
    line = trainer.step(batch)
    assert line["parity_tokens"] > 0 and line["max_abs_dlogp"] == 0 < line["max_abs_drift"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora": {"dense": 2}}, r"trainer\.lora: no dense matrix of this model is trained; leave dense out"),
        ({"lora": {"attention": 16}}, r"a rank of 16 is not below both sides of blocks\.0\.attention\.k_proj"),
        ({"frozen": ("dense",)}, r"frozen: 'dense' is nothing of this model of 2 layers"),
        ({"frozen": ("2:",)}, r"frozen: '2:' is nothing of this model of 2 layers"),
        ({"frozen": (":", "embeddings", "norms")}, r"frozen: nothing is left to train"),
        ({"lora": {"attention": 2}, "frozen": (":",)}, r"trainer\.lora: no attention matrix of this model is trained"),
    ],
)
def test_what_the_model_lacks_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        trainer_of(**changes)


def test_a_frozen_or_adapted_tensor_costs_a_version_nothing():
    """The very arrays of the version before: they are neither copied nor looked at again."""
    for changes in ({"lora": {"attention": 2}}, {"frozen": ("embeddings", ":1")}):
        trainer = trainer_of(**changes)
        train_on(trainer, np.random.default_rng(1))  # in an adapter's first step one factor stays
        first = trainer.export()
        held = Held(Version(0), root_of(first), first)
        train_on(trainer, np.random.default_rng(0))
        second = trainer.export()
        still = {name for name in first if second[name] is first[name]}
        moving = {*trainer.trained.trained, *([ROOT] if trainer.trained.ranks else [])}
        assert still and still | moving == second.keys()
        packs: list[Pack] = []
        put = partial(lambda into, pack, data: into.append(pack), packs)
        delta = make_delta("0" * 32, Version(1), second, held, 1 << 20, put=put)
        for tensor in delta.tensors:
            cost = sum(chunk.size for chunk in tensor.chunks)
            assert (cost == 1 and tensor.hash == tensor.parent_hash) if tensor.name in still else cost > 1, tensor.name
        changed = dict(second) | {name: second[name].copy() for name in still}
        again = make_delta("0" * 32, Version(1), changed, held, 1 << 20, put=lambda pack, data: None)
        assert list(again.packs) == packs, "and would be written the same"


def test_what_is_published_makes_the_policy_and_nothing_else_does():
    trainer = trainer_of(LATENT, lora=ALL)
    train_on(trainer, np.random.default_rng(0))
    bits = trainer.export()
    wanted = export_bits(trainer.policy)
    served = merged(bits)
    assert root_of(served) == root_of(wanted) != root_of(bits)
    assert merged(wanted) is wanted
    assert trainer.export(into=copy.deepcopy(bits)).keys() == bits.keys()
    one = next(name for name in bits if name.endswith(OUTPUTS))
    for wrong, said in (
        ({one: bits[one] ^ 1}, "do not make the matrices that their trainer had"),
        ({ROOT: bits[ROOT] ^ 1}, "do not make the matrices"),
        ({one: bits[one][..., :-1].copy()}, "do not fit each other"),
        ({one: bits[one].astype(np.uint32)}, "three arrays of bf16"),
    ):
        with pytest.raises(Exception, match=said):
            merged(bits | wrong)
    with pytest.raises(Exception, match="three arrays of bf16"):
        merged({name: each for name, each in bits.items() if name != one})

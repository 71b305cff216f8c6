"""The policy loss: every switch beside plain float64 NumPy, value and gradient, and by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from etude.config import parse
from etude.errors import ConfigError
from etude.records import Batch, Version
from etude.trainer.config import GateConfig, KLConfig, LossConfig, TrainerConfig
from etude.trainer.losses import MASKS, BehaviourData, policy_loss, reshared_tokens, shares_of, trimmed_mean

torch.set_num_threads(1)


def policy_and_sampler(seed=0, tokens=400):
    """Log-probabilities of both, advantages, a reference, and segments of 8 to 13 tokens; far enough apart for every
    switch to act."""
    rng = np.random.default_rng(seed)
    behaviour = np.log(rng.uniform(0.02, 0.98, tokens))
    logps = np.minimum(behaviour + rng.normal(0, 0.6, tokens), -0.001)
    segments = np.sort(rng.integers(0, tokens // 10, tokens))
    segments = np.unique(segments, return_inverse=True)[1]
    return logps, behaviour, rng.normal(0, 1, tokens), segments, behaviour + rng.normal(0, 0.4, tokens)


def torch_loss(values, shares, config):
    logps, behaviour, advantages, segments, reference = values
    logps_S = torch.tensor(logps, dtype=torch.float32, requires_grad=True)
    as_32 = [torch.tensor(each, dtype=torch.float32) for each in (behaviour, advantages, shares)]
    referred = torch.tensor(reference, dtype=torch.float32) if config.kl else None
    said = BehaviourData(*as_32, torch.tensor(segments), referred)
    terms = policy_loss(logps_S, torch.full_like(logps_S, 0.7), said, config)
    terms.loss.backward()
    return terms, logps_S.grad.numpy()


def plain_loss(values, shares, config):
    """Value and gradient in float64, one token after another, straight from the formulas."""
    logps, behaviour, advantages, segments, reference = values
    loss, gradient = 0.0, np.zeros(len(logps))
    for t in range(len(logps)):
        segment = np.mean([logps[i] - behaviour[i] for i in range(len(logps)) if segments[i] == segments[t]])
        if config.gate and not config.gate.low <= math.exp(segment) <= config.gate.high:
            continue
        p, q, w, advantage = (
            math.exp(logps[t]),
            math.exp(behaviour[t]),
            math.exp(logps[t] - behaviour[t]),
            advantages[t],
        )
        if config.weight == "segment":
            w = math.exp(segment)
        if config.kl and config.kl.estimator == "k1":
            advantage -= config.kl.weight * (logps[t] - reference[t])
        divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        drop = {
            "tv": (p - q > config.limit and advantage > 0) or (p - q < -config.limit and advantage < 0),
            "kl": divergence > config.limit and ((p > q and advantage > 0) or (p < q and advantage < 0)),
            "ratio": (w > config.highest and advantage > 0) or (w < config.lowest and advantage < 0),
            "band": not config.lowest <= w <= config.highest,
            "off": False,
        }[config.mask]
        w = min(max(w, config.importance_floor), config.importance_cap)
        factor = 0 if drop else w * advantage
        loss -= factor * logps[t] * shares[t]
        gradient[t] -= factor * shares[t]
        loss -= config.entropy_bonus * 0.7 * shares[t]
        if config.kl and config.kl.estimator != "k1":
            d, b = logps[t] - reference[t], config.kl.weight
            loss += w * b * shares[t] * (d**2 / 2 if config.kl.estimator == "k2" else math.exp(-d) - 1 + d)
            gradient[t] += w * b * shares[t] * (d if config.kl.estimator == "k2" else 1 - math.exp(-d))
    return loss, gradient


WEIGHTS = [{}, {"importance_cap": 1.28, "importance_floor": 0.8}, {"weight": "segment"}, {"importance_cap": math.inf}]
OTHERS = [
    {}, {"gate": GateConfig(band=(0.9, 1.1))}, {"entropy_bonus": 0.1},
    *({"kl": KLConfig(estimator=name, weight=0.2)} for name in ("k1", "k2", "k3")),
]  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
def test_value_and_gradient_are_as_plain_numpy_has_them(mask):
    values = policy_and_sampler()
    shares = np.random.default_rng(1).uniform(0.5, 1.5, len(values[0])) / 400
    for weight, other in itertools.product(WEIGHTS, OTHERS):
        config = LossConfig(mask=mask, **weight, **other)
        terms, gradient = torch_loss(values, shares, config)
        loss, expected = plain_loss(values, shares, config)
        assert terms.loss.item() == pytest.approx(loss, rel=2e-4, abs=1e-5), config
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-7, err_msg=str(config))
        if mask != "off" and config.weight == "token":  # geometric means of ten tokens stay within the widest band
            assert 0 < terms.sums["masked_up"] + terms.sums["masked_down"] < terms.sums["tokens"], config


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_off_policy_a_pull_is_the_gradient_of_the_divergence(estimator):
    """In expectation over all tokens of a small vocabulary, by logits, in float64: KL(policy, reference) for k1 and k2,
    KL(reference, policy) for k3, whoever sampled. Advantages are 0, and nothing is truncated."""
    rng = np.random.default_rng(4)
    logits_V, behaviour_V, reference_V = (torch.tensor(rng.normal(0, 1, 7)).log_softmax(0) for _ in range(3))
    logits_V.requires_grad_()
    logps_V = logits_V.log_softmax(0)
    config = LossConfig(importance_cap=math.inf, mask="off", kl=KLConfig(weight=1.0, estimator=estimator))
    none_V = torch.zeros(7, dtype=torch.float64)
    sampled = BehaviourData(behaviour_V, none_V, behaviour_V.exp(), torch.arange(7), reference_V)
    policy_loss(logps_V, none_V, sampled, config).loss.backward()
    found = logits_V.grad.numpy().copy()
    p, r = logps_V.detach().exp().numpy(), reference_V.exp().numpy()
    d = np.log(p / r)
    expected = p - r if estimator == "k3" else p * (d - (p * d).sum())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_on_policy_the_gradient_is_minus_advantage_over_the_budget():
    values = ([-1.0, -2.0], [-1.0, -2.0], [1.0, -0.5], [0, 0], None)
    terms, gradient = torch_loss(values, [1 / 4, 1 / 4], LossConfig())
    np.testing.assert_allclose(gradient, [-0.25, 0.125])
    assert terms.loss.item() == pytest.approx(-(1.0 * -1.0 + -0.5 * -2.0) / 4)
    assert terms.max_abs_dlogp == 0


def test_importance_weights_are_truncated_at_the_cap():
    values = ([-3.0, -5.0], [-3.5, -8.0], [1.0, 1.0], [0, 0], None)
    terms, gradient = torch_loss(values, [1 / 4, 1 / 4], LossConfig(mask="off"))
    np.testing.assert_allclose(gradient, [-np.exp(0.5) / 4, -2 / 4], rtol=1e-6)
    assert terms.sums["capped"] == 1


def test_the_mask_drops_what_has_moved_too_far_the_way_its_advantage_pushes():
    values = (np.log([0.8, 0.8, 0.1, 0.1]), np.log([0.5] * 4), [1.0, -1.0, -1.0, 1.0], [0] * 4, None)
    terms, gradient = torch_loss(values, [1 / 4] * 4, LossConfig())
    assert (gradient != 0).tolist() == [False, True, False, True]
    assert (terms.sums["masked_up"], terms.sums["masked_down"]) == (1, 1)


def test_ppo_is_the_ratio_mask_without_a_cap():
    logps, behaviour, advantages, segments, _ = policy_and_sampler(3)
    config = LossConfig(mask="ratio", importance_cap=math.inf)
    _, gradient = torch_loss((logps, behaviour, advantages, segments, None), np.ones(len(logps)), config)
    logps_S = torch.tensor(logps, requires_grad=True)
    ratio, gain = (logps_S - torch.tensor(behaviour)).exp(), torch.tensor(advantages)
    (-torch.minimum(ratio * gain, ratio.clamp(0.8, 1.28) * gain).sum()).backward()
    np.testing.assert_allclose(gradient, logps_S.grad, rtol=1e-3, atol=1e-6)


def test_a_sure_token_has_a_finite_divergence():
    values = ([0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [1.0, 1.0, -1.0], [0, 0, 0], None)
    terms, gradient = torch_loss(values, [1.0] * 3, LossConfig(mask="kl"))
    assert np.isfinite(gradient).all()
    assert (terms.sums["masked_up"], terms.sums["masked_down"]) == (1, 1)


COUNTED = {
    "capped": {"importance_cap": 1.5}, "floored": {"importance_floor": 0.5}, "reweighted": {"weight": "segment"},
    "gated": {"gate": GateConfig(band=(0.9, 1.1))}, "broadened": {"entropy_bonus": 0.1},
    "from_reference": {"kl": KLConfig()}, "masked_up": {"mask": "tv"}, "masked_down": {"mask": "kl"},
}  # fmt: skip


@pytest.mark.parametrize("counter", COUNTED)
def test_a_switch_that_is_off_counts_nothing(counter):
    off = {"importance_cap": math.inf, "mask": "off"}
    values = policy_and_sampler()
    terms, _ = torch_loss(values, np.ones(400), LossConfig(**(off | COUNTED[counter])))
    counted = {name for name in COUNTED if terms.sums.get(name, 0) > 0}
    assert counted - {"masked_up", "masked_down"} == {counter} - {"masked_up", "masked_down"}
    assert (counter in counted) and ("masked_up" in counted) == counter.startswith("masked")


def test_a_token_that_another_switch_took_out_or_that_teaches_nothing_is_not_counted():
    """Tokens: capped; capped, but masked; capped, but worth nothing; capped, but of a segment that the gate rejects."""
    behaviour = np.log([0.1, 0.5, 0.1, 0.1])
    values = (behaviour + np.array([1.0, 0.6, 1.0, 3.0]), behaviour, [-1.0, 1.0, 0.0, -1.0], [0, 0, 0, 1], behaviour)
    switches = LossConfig(importance_cap=1.5, gate=GateConfig(band=(0.1, 9)), kl=KLConfig(), mask="tv")
    terms, gradient = torch_loss(values, np.ones(4), switches)
    names = ("capped", "masked_up", "masked_down", "gated", "from_reference")
    assert {name: terms.sums[name] for name in names} == {
        "capped": 2, "masked_up": 1, "masked_down": 0, "gated": 1, "from_reference": 2,
    }, "what k1 takes of an advantage makes the third token worth something"  # fmt: skip
    assert gradient[3] == 0
    without, _ = torch_loss((*values[:4], None), np.ones(4), switches.model_copy(update={"kl": None}))
    assert without.sums["capped"] == 1


def batch_of(lengths, trajectory_of, group_of):
    """Segments whose every token but the first was sampled."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    said = np.concatenate([np.arange(length) > 0 for length in lengths])
    zeros = np.zeros(len(ids), np.int32)
    return Batch(
        token_ids=zeros, positions=zeros, segment_ids=ids, loss_mask=said, summary_mask=~said, advantages=zeros,
        behaviour_logprobs=zeros, ages=zeros, routed_experts=np.zeros((0, 0, 0), np.uint8), routed_mask=said,
        trajectory_of=np.array(trajectory_of), group_of=np.array(group_of),
        version=Version(0),
    )  # fmt: skip


def test_what_a_token_weighs_by_each_normaliser():
    """Two groups; the first has a trajectory of two segments, 6 sampled tokens, and one of 2; the second one of 4."""
    batch = batch_of([4, 4, 3, 5], [0, 0, 1, 2], [0, 0, 1])
    expected = {
        "trajectory": [1 / 18, 1 / 18, 1 / 6, 1 / 12],
        "prompt": [1 / 16, 1 / 16, 1 / 16, 1 / 8],
    }
    for normaliser, shares in expected.items():
        found = shares_of(batch, LossConfig(normaliser=normaliser))
        np.testing.assert_allclose(found, shares, rtol=1e-6)
        tokens = np.array([3, 3, 2, 4])
        assert (found * tokens).sum() == pytest.approx(1)
        assert reshared_tokens(batch, found, LossConfig(normaliser=normaliser)) == 12
    constant = LossConfig()
    np.testing.assert_allclose(shares_of(batch, constant), [1 / 8192] * 4)
    assert reshared_tokens(batch, shares_of(batch, constant), constant) == 0
    alike = np.array([1 / 8192, 1 / 8192, 1 / 6, 1 / 12], np.float32)
    assert reshared_tokens(batch, alike, LossConfig(normaliser="prompt")) == 6, (
        "what it leaves as it was is not counted"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mask": "off", "band": 0.1}, "band: has no effect"),
        ({"mask": "ratio", "band": 0.1}, r"wants \[lowest, highest\]"),
        ({"band": [0.5, 2]}, "wants one number"),
        ({"mask": "kl", "band": 0}, "must be above 0"),
        ({"mask": "band", "band": [1.1, 2]}, "must hold 1"),
        ({"band": 1.0}, 'mask = "off"'),
        ({"importance_cap": 1.0, "importance_floor": 1.5}, "not below importance_cap"),
        ({"token_budget": 4096}, "key token_budget is gone: it is now fixed at 8192 because"),
        ({"normaliser": "tokens"}, 'is gone: write normaliser = "constant"'),
        ({"gate": {"band": (1.2, 1.3)}}, "loss.gate.*must hold 1"),
    ],
)
def test_a_key_that_could_change_nothing_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        parse({"loss": wrong}, TrainerConfig, "recipe")


def test_what_a_run_must_prove_is_what_was_switched_on():
    assert TrainerConfig().features == ()
    chosen = LossConfig(
        weight="segment", importance_cap=3, importance_floor=0.5, mask="kl", gate=GateConfig(),
        kl=KLConfig(), entropy_bonus=0.01, normaliser="prompt",
    )  # fmt: skip
    assert set(chosen.features) == {
        "segment_weighted_tokens", "capped_tokens", "floored_tokens", "masked_tokens", "gated_segments",
        "reference_tokens", "entropy_tokens", "reshared_tokens",
    }  # fmt: skip
    assert LossConfig(band=0.1).features == ("masked_tokens",)
    assert TrainerConfig(gradient_clip=2).features == ("clipped_steps",)
    assert TrainerConfig(gradient_clip=8).features == (), "set to act less, it may as well not act"


def test_a_trimmed_mean_leaves_out_the_largest_and_is_never_of_nothing():
    values = np.r_[np.ones(1999), 1e4, 1e5].astype(np.float32)
    assert trimmed_mean(torch.from_numpy(values), 0.001) == pytest.approx(1.0), "2.001 tokens are 3"
    assert trimmed_mean(torch.from_numpy(values[:10]), 0.001) == 1.0
    assert trimmed_mean(torch.from_numpy(values[-1:]), 0.001) == 1e5
    assert trimmed_mean(torch.tensor([3.0, 1.0, 2.0]), 0.3) == 1.5

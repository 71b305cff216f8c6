"""What a step says of each token is what the policy says of it, and goes to the trajectory that has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_policy import TASK, policy, rollouts, segment, trajectory

from etude.archive.records import MASKS
from etude.models.attention import PackedAttention
from etude.records import Group, Scored, Version
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, GateConfig, LossConfig
from etude.trainer.marks import marks_of
from etude.trainer.packing import build_batch


def marked(trainer, groups, mask_summaries=False):
    values = [group_advantages(group, AdvantageConfig()) for group in groups]
    batch = build_batch(groups, values, trainer.version, mask_summaries=mask_summaries)
    trainer.step(batch)
    return marks_of(groups, trainer.seen, mask_summaries), values


@torch.no_grad()
def said_by(trainer, ids):
    output = trainer.policy(torch.tensor(ids), torch.arange(len(ids)), PackedAttention([len(ids)]))
    logprobs = trainer.policy.logits(output.hidden_ND).log_softmax(-1)
    return logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy(), -(logprobs.exp() * logprobs).sum(
        -1
    ).numpy()


@pytest.mark.parametrize("piece_tokens", [5, 100_000])
def test_each_token_has_the_policys_word_before_the_step(piece_tokens):
    """Whatever the pieces; tokens that are in no batch have none."""
    first = segment([1, 2, 3, 4, 5, 6], [0, 1, 0, 1, 1, 0])
    second = segment([7, 8, 9, 10], [0, 0, 1, 1])
    unsampled = segment([7, 8], [0, 0])
    one, none = Scored(1, {}), Scored(0, {})
    groups = [
        Group("a", TASK, (trajectory("a/0", one, first, unsampled, second), trajectory("a/1", none, second))),
        Group("b", TASK, (trajectory("b/0", one, second), trajectory("b/1", none, first))),
    ]
    trainer = policy(piece_tokens=piece_tokens, loss=LossConfig(mask="off"))
    expected = {name: said_by(trainer, ids) for name, ids in {"f": [1, 2, 3, 4, 5, 6], "s": [7, 8, 9, 10]}.items()}
    found, values = marked(trainer, groups)
    assert [each.id for each in found] == ["a/0", "a/1", "b/0", "b/1"]
    (of_first, entropy_first), (of_second, entropy_second) = expected["f"], expected["s"]
    parts = [([0, 2, 3], of_first, entropy_first), ([1, 2], of_second, entropy_second)]
    logps = np.concatenate([told[places] for places, told, _ in parts])
    entropies = np.concatenate([told[places] for places, _, told in parts])
    np.testing.assert_allclose(found[0].trainer_logprobs, logps, atol=1e-5)
    np.testing.assert_allclose(found[0].entropies, entropies, atol=1e-5)
    np.testing.assert_allclose(found[2].trainer_logprobs, logps[3:], atol=1e-5)
    np.testing.assert_allclose(found[3].trainer_logprobs, logps[:3], atol=1e-5)
    assert [set(each.advantages.tolist()) for each in found] == [{value} for value in np.concatenate(values).tolist()]
    assert all(each.mask.tolist() == [0] * len(each.mask) for each in found) and trainer.version == Version(1)


def test_a_summary_that_is_left_out_has_no_figures():
    summed = replace(segment([1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 1, 1]), kind="summary")
    group = Group("a", TASK, (trajectory("a/0", Scored(1, {}), summed), trajectory("a/1", Scored(0, {}), summed)))
    found, _ = marked(policy(loss=LossConfig(mask="off")), [group], mask_summaries=True)
    assert [MASKS[code] for code in found[0].mask] == ["trained", "trained", "left_out", "left_out"]
    assert np.isnan(found[0].advantages).tolist() == [False, False, True, True] and found[0].trained_tokens == 2
    whole, _ = marked(policy(loss=LossConfig(mask="off")), [group])
    assert whole[0].trained_tokens == 4 and not np.isnan(whole[0].entropies).any()


def test_masks_say_which_way_a_token_had_gone_and_the_gate_which_segment():
    """Sampled at a log-probability far from the policy's: it has risen for one, and fallen for the other."""
    rare, sure = (segment([1, 2, 3], [0, 1, 1], logprob=logprob) for logprob in (-30.0, 0.0))
    rising = Group("a", TASK, (trajectory("a/0", Scored(1, {}), rare), trajectory("a/1", Scored(0, {}), rare)))
    falling = Group("b", TASK, (trajectory("b/0", Scored(1, {}), sure), trajectory("b/1", Scored(0, {}), sure)))
    ratio = LossConfig(mask="ratio")
    found, _ = marked(policy(loss=ratio), [rising, falling])
    named = {each.id: {MASKS[code] for code in each.mask} for each in found}
    assert named == {"a/0": {"masked_up"}, "a/1": {"trained"}, "b/0": {"trained"}, "b/1": {"masked_down"}}
    gated, _ = marked(policy(loss=LossConfig(mask="off", gate=GateConfig())), [rising])
    assert {MASKS[code] for each in gated for code in each.mask} == {"gated"}


def test_the_counts_are_those_of_the_metrics():
    trainer = policy()
    groups = rollouts(trainer, np.random.default_rng(0), 20)
    values = [group_advantages(group, AdvantageConfig()) for group in groups]
    batch = build_batch(groups, values, trainer.version)
    metrics = trainer.step(batch)
    found = marks_of(groups, trainer.seen, mask_summaries=False)
    masked = sum(int((each.mask >= MASKS.index("masked_up")).sum()) for each in found)
    assert sum(len(each.mask) for each in found) == metrics["trained_tokens"] == 64
    assert masked == round(metrics["masked_share"] * 64)
    total = np.nansum(np.concatenate([each.entropies for each in found]))
    assert total / 64 == pytest.approx(metrics["entropy"], rel=1e-5)
    with pytest.raises(ValueError, match="its trajectories"):
        marks_of(groups[:1], trainer.seen, mask_summaries=False)

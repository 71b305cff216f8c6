"""Credit: shares of a trajectory's segments, and summaries in the loss or out of it."""

import numpy as np
import pytest
import torch

from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer.config import AdvantageConfig, CreditConfig, OptimizerConfig, TrainerConfig
from etude.trainer.credit import assign_advantages, segment_advantages, summary_tokens
from etude.trainer.packing import build_batch, segment_lengths, select_positions
from etude.trainer.step import Trainer

torch.set_num_threads(1)
CONFIG = ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16)
TASK = Task("t", "do", {}, Verifier({}))
SEGMENT = CreditConfig(baseline="segment")


def segment(sampled, kind="turns", first=1, version=0):
    sampled = np.asarray([int(each) for each in sampled], bool)
    length = len(sampled)
    return Segment(
        (np.arange(length, dtype=np.int32) * 7 + first) % 64, sampled, np.full(length, -4.0, np.float32),
        np.full(length, version, np.int32), np.tile(np.array([0, 1], np.uint8), (length - 1, CONFIG.layers, 1)), kind,
    )  # fmt: skip


def group(*members):
    """Of (reward, segments) each."""
    return Group(
        "g", TASK, tuple(Trajectory(f"g/{at}", "t", "g", s, (), Scored(r, {})) for at, (r, s) in enumerate(members))
    )


def chain(count, first=1):
    """A trajectory of so many segments, all but the last ending with a summary."""
    cut = [segment("0011001110", "summary", first + 3 * at, version=at) for at in range(count - 1)]
    return (*cut, segment("00110", first=first + 40, version=count))


def in_numpy(rewards, counts, leave_one_out=False, std=False):
    """Plain float64: each place on its own, and the trajectory's own value where nobody else came as far."""
    rewards = np.asarray(rewards, np.float64)

    def advantages(values):
        centred = values - values.mean()
        if leave_one_out and len(values) > 1:
            centred = centred * len(values) / (len(values) - 1)
        return centred / (values.std() + 1e-6) if std else centred

    whole = advantages(rewards)
    shares = []
    for member, count in enumerate(counts):
        mine = []
        for place in range(count):
            others = [at for at, reached in enumerate(counts) if reached > place]
            mine.append(advantages(rewards[others])[others.index(member)] if len(others) > 1 else whole[member])
        shares.append(mine)
    return shares


def test_by_default_every_segment_has_its_trajectorys_advantage_and_a_reward_counts_once():
    long, short = chain(3), chain(1)
    shares = segment_advantages(group((1.0, long), (0.0, short)), AdvantageConfig(), CreditConfig())
    assert [each.tolist() for each in shares] == [[0.5, 0.5, 0.5], [-0.5]]


@pytest.mark.parametrize("config", [{}, {"baseline": "leave_one_out"}, {"normalise": "group"}])
def test_segment_baseline_at_golden_numbers(config):
    rewards, counts = [1.0, 0.25, 0.0, 0.5, 1.0], [3, 1, 2, 2, 4]
    shares = segment_advantages(
        group(*((r, chain(n)) for r, n in zip(rewards, counts, strict=True))), AdvantageConfig(**config), SEGMENT
    )
    wanted = in_numpy(rewards, counts, config.get("baseline") == "leave_one_out", "normalise" in config)
    for got, want in zip(shares, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    if not config:  # two by hand: of place 2, 1 and 1; of place 3, nobody else's, so the trajectory's own
        assert shares[0][2] == 0 and shares[4][3] == pytest.approx(1.0 - 0.55)


def test_what_the_segment_baseline_changes_is_counted():
    alone, alike = group((1.0, chain(3)), (0.0, chain(1))), group((1.0, chain(3)), (0.0, chain(2)), (0.5, chain(1)))
    assert assign_advantages([alone], AdvantageConfig(), SEGMENT).used == {"recredited_segments": 0}, (
        "nobody else came as far"
    )
    assert assign_advantages([alike], AdvantageConfig(), SEGMENT).used == {"recredited_segments": 0}, (
        "the same mean there"
    )
    apart = group((1.0, chain(3)), (0.25, chain(2)), (0.0, chain(1)))
    assert assign_advantages([alone, apart], AdvantageConfig(), SEGMENT).used == {"recredited_segments": 2}
    assert assign_advantages([apart], AdvantageConfig(), CreditConfig()).used == {}
    assert CreditConfig().features == () and SEGMENT.features == ("recredited_segments",)


def test_the_summary_is_the_last_message_of_its_segment():
    assert summary_tokens(segment("0011001110", "summary")).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 0]
    assert summary_tokens(segment("0111", "summary")).tolist() == [0, 1, 1, 1]
    assert not summary_tokens(segment("0011001110")).any()


def test_every_sampled_token_of_every_segment_is_credited_and_summaries_can_be_left_out():
    given = group((1.0, chain(3)), (0.0, chain(2, first=20)))
    advantages = [segment_advantages(given, AdvantageConfig(), CreditConfig())]
    whole = build_batch([given], advantages, Version(5))
    said = sum(int(s.sampled.sum()) for member in given.trajectories for s in member.segments)
    assert whole.loss_mask.sum() == said == (whole.advantages != 0).sum()
    assert set(whole.advantages[whole.loss_mask].tolist()) == {0.5, -0.5} and whole.summary_mask.sum() == 3 * 3
    assert len(whole.group_of) == 2 and segment_lengths(whole) == [9, 9, 4, 9, 4]
    first = select_positions(whole, slice(0, 22))
    assert first.ages[first.loss_mask].tolist() == [5] * 5 + [4] * 5 + [2] * 2, "each segment has its own versions"

    masked = build_batch([given], advantages, Version(5), mask_summaries=True)
    assert masked.token_ids.tolist() == whole.token_ids.tolist(), "both compute the same"
    assert masked.loss_mask.tolist() == (whole.loss_mask & ~whole.summary_mask).tolist()
    assert not masked.advantages[masked.summary_mask].any() and not masked.behaviour_logprobs[masked.summary_mask].any()
    alone = group((1.0, (segment("0111", "summary"), segment("0011"))))
    kept = build_batch([alone], [np.ones(1, np.float32)], Version(0), mask_summaries=True)
    assert segment_lengths(kept) == [4], "a segment that is a summary and nothing else has nothing left to train"


def trained(batch):
    """The weights after a step on a batch, and what it reports."""
    decoder = Decoder(CONFIG)
    decoder.initialise(0)
    trainer = Trainer(decoder, TrainerConfig(optimizer=OptimizerConfig(name="adamw", lr=1e-2), warmup_steps=0))
    metrics = trainer.step(batch)
    return torch.cat([parameter.flatten() for parameter in trainer.policy.parameters()]), metrics


def test_a_step_learns_from_summaries_and_with_the_mask_from_nothing_of_them():
    given = group((1.0, chain(3)), (0.0, chain(2, first=20)))
    advantages = [segment_advantages(given, AdvantageConfig(), CreditConfig())]
    whole, report = trained(build_batch([given], advantages, Version(0)))
    masked, masked_report = trained(build_batch([given], advantages, Version(0), mask_summaries=True))
    assert not torch.equal(whole, masked)
    assert (report["summary_tokens_trained"], report["summary_tokens_masked"]) == (9, 0)
    assert (masked_report["summary_tokens_trained"], masked_report["summary_tokens_masked"]) == (0, 9)
    assert report["trained_tokens"] == masked_report["trained_tokens"] + 9 and report["segments_trained"] == 5

    def unsaid(each):
        """The same segment, as if its summary had been written by somebody else."""
        fields = {name: getattr(each, name) for name in ("token_ids", "logprobs", "versions", "routed_experts")}
        return Segment(sampled=each.sampled & ~summary_tokens(each), **fields)

    other = group(*((m.outcome.reward, tuple(map(unsaid, m.segments))) for m in given.trajectories))
    assert torch.equal(masked, trained(build_batch([other], advantages, Version(0)))[0])

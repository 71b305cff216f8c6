"""What a backward keeps: rows of the vocabulary, one block at a time, and policies by what has changed."""

import numpy as np
import pytest
import torch

from etude.models.attention import PackedAttention
from etude.models.config import LatentConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.records import Group, Scored, Segment, Task, Trajectory, Verifier, Version
from etude.trainer import activations
from etude.trainer.advantages import group_advantages
from etude.trainer.config import AdvantageConfig, OptimizerConfig, TrainerConfig
from etude.trainer.packing import build_batch
from etude.trainer.sampler_parity import SamplerParityCheck
from etude.trainer.step import Trainer

torch.set_num_threads(1)
SHAPES = {
    "experts": ModelConfig(vocab_size=64, width=32, layers=3, heads=4, head_width=8, experts=4, expert_width=16),
    "dense": ModelConfig(vocab_size=64, width=32, layers=3, heads=4, head_width=8, experts=0, dense_width=32),
    "latent": ModelConfig(
        vocab_size=64, width=32, layers=3, heads=4, dense_layers=(0,), dense_width=32, experts=8, expert_width=16,
        router="sigmoid", expert_groups=2, groups_per_token=1, shared_width=16,
        latent=LatentConfig(query_rank=16, rank=12, plain_width=8, rope_width=4, value_width=6),
    ),
}  # fmt: skip
LENGTHS = [11, 3, 26]


def decoder(shape: str) -> Decoder:
    made = Decoder(SHAPES[shape])
    made.initialise(0)
    return made


def batch_for(policy: Decoder):
    rng = np.random.default_rng(0)
    config, members = policy.config, []
    for number, length in enumerate(LENGTHS):
        odds = rng.random((length - 1, len(config.moe_layers), config.experts))
        routes = odds.argsort(-1)[..., : config.experts_per_token]
        ids, sampled = rng.integers(0, 64, length), np.arange(length) > length // 3
        segment = Segment(
            ids.astype(np.int32), sampled, np.where(sampled, -4.2, 0).astype(np.float32),
            np.zeros(length, np.int32), routes.astype(np.uint8),
        )  # fmt: skip
        members.append(Trajectory(str(number), "t", "g", (segment,), (), Scored(float(number), {})))
    group = Group("g", Task("t", "do", {}, Verifier({})), tuple(members))
    return build_batch([group], [group_advantages(group, AdvantageConfig())], Version(0))


def stepped(shape: str) -> Trainer:
    trainer = Trainer(
        decoder(shape),
        TrainerConfig(
            router_replay=shape != "dense",
            optimizer=OptimizerConfig(name="adamw", lr=0.01),
        ),
    )
    trainer.step(batch_for(trainer.policy))
    return trainer


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in trainer.trained.masters.parameters()])


class Kept:
    """Bytes that the graphs made meanwhile keep for their backward, beside parameters; the most at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self):
        def pack(tensor):
            size = 0 if tensor.is_leaf and tensor.requires_grad else tensor.numel() * tensor.element_size()
            self.now += size
            self.most = max(self.most, self.now)
            return tensor, size

        def unpack(packed):
            return packed[0]

        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *raised):
        self._hooks.__exit__(*raised)


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_made_once_more_give_the_same_bits_and_keep_less(shape, monkeypatch):
    kept = stepped(shape)
    monkeypatch.setattr(activations, "BLOCKS_BYTES", 0)
    assert torch.equal(weights(stepped(shape)), weights(kept))

    def bytes_kept(recompute: bool) -> int:
        model, tokens = decoder(shape), 400
        ids = torch.arange(tokens) % 64
        with Kept() as seen:
            model(ids, torch.arange(tokens), PackedAttention([tokens]), recompute=recompute)
        return seen.now

    assert bytes_kept(True) < 0.35 * bytes_kept(False)


@pytest.mark.parametrize("bonus", [0.0, 0.1])
def test_a_vocabulary_in_rows_gives_what_it_gives_whole(bonus, monkeypatch):
    policy, ids = decoder("experts"), torch.arange(10)
    hidden = torch.randn(10, 32, requires_grad=True)

    def said():
        logps, entropies = activations.sampled_logprobs(policy, hidden, ids, 0.7, trains_entropy=bonus > 0)
        asked = [hidden, policy.embed.weight]
        return logps, entropies, torch.autograd.grad(logps.sum() + bonus * entropies.sum(), asked)

    logps, entropies, gradients = said()
    monkeypatch.setattr(activations, "VOCABULARY_BYTES", 3 * 64 * 4)
    in_rows = said()
    assert torch.equal(in_rows[0], logps) and torch.equal(in_rows[1], entropies)
    for one, other in zip(in_rows[2], gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert in_rows[1].requires_grad == (bonus > 0)
    expected = torch.distributions.Categorical(logits=policy.logits(hidden) / 0.7)
    torch.testing.assert_close(logps, expected.log_prob(ids))
    torch.testing.assert_close(entropies, expected.entropy())
    with Kept() as kept:
        activations.sampled_logprobs(policy, hidden, ids, 0.7)
    assert kept.most < 10 * 64 * 4  # not even one of the arrays [S, V] there would be


def test_only_models_that_are_not_tiny_compute_twice():
    tiny = ModelConfig(vocab_size=1024, width=128, layers=4, heads=4, kv_heads=2, head_width=32, experts=8)
    smol = ModelConfig(
        vocab_size=49152, width=576, layers=30, heads=9, kv_heads=3, head_width=64, experts=0, dense_width=1536
    )
    assert not activations.recomputes_blocks(tiny, 8192)
    assert activations.recomputes_blocks(smol, 2048)
    assert not activations.recomputes_blocks(smol, 2048, frozen=22), "the last 8 of 30 are a quarter of it"


def test_a_policy_is_kept_by_what_has_changed_and_comes_back_bit_for_bit():
    policy, check = decoder("experts"), SamplerParityCheck(tokens=64, versions=3)
    rng = np.random.default_rng(0)

    def bits():
        return [each.detach().clone() for each in policy.parameters()]

    def change(share: float) -> None:
        with torch.no_grad():
            for each in policy.parameters():
                moved = torch.from_numpy(rng.random(each.shape) < share)
                each[moved] = (each[moved] + 0.5).bfloat16().float()

    change(1.0)
    seen = []
    for version, share in enumerate([0.01, 0.9, 0.01, 0.01]):
        check.remember(Version(version), policy)
        seen.append(bits())
        change(share)
    check.remember(Version(4), policy)
    newest = bits()
    for version in (2, 3):
        with check.restored(Version(version), policy):
            assert all(map(torch.equal, bits(), seen[version]))
        assert all(map(torch.equal, bits(), newest))
    size = sum(each.numel() for each in policy.parameters())
    kept = [part for tensors in check._older.values() for each in tensors for part in parts(each)]
    assert list(check._older) == [2, 3]
    assert 0 < sum(part.numel() * part.element_size() for part in kept) < 0.3 * 2 * size


def parts(kept):
    return (kept,) if isinstance(kept, torch.Tensor) else kept

"""What an optimizer moves, and what it leaves alone."""

import pytest
import torch
from torch import nn

from etude.models.attention import PackedAttention
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.trainer.config import OptimizerConfig
from etude.trainer.optimizers import Muon, build_optimizer

torch.set_num_threads(1)


def muon(*shape):
    torch.manual_seed(0)
    weights = nn.Parameter(torch.randn(shape))
    return weights, Muon([weights], lr=0.02, momentum=0.95, weight_decay=0.0)


def steps(weights, optimizer, gradients):
    """How far every step moved the weights [steps, the weights' own shape]."""
    moved = []
    for gradient in gradients:
        before = weights.detach().clone()
        weights.grad = gradient.clone()
        optimizer.step()
        moved.append(weights.detach() - before)
    return torch.stack(moved)


def test_a_matrix_without_a_gradient_is_not_moved_by_what_it_remembers():
    weights, optimizer = muon(8, 12)
    moved = steps(weights, optimizer, [torch.randn(8, 12) * 1e-5, *[torch.zeros(8, 12)] * 60])
    assert moved[0].norm() > 0.01, "however small the gradient"
    assert not moved[1:].any()


def test_an_expert_that_saw_no_token_stays_and_the_others_go_on():
    """Two stacks with the same gradients, but that expert 1 of the second gets one in the first step alone."""
    (full, all_busy), (rare, some_idle) = muon(4, 8, 12), muon(4, 8, 12)
    gradients = [torch.randn(4, 8, 12) * 1e-5 for _ in range(20)]
    without = [each.clone() for each in gradients]
    for each in without[1:]:
        each[1] = 0
    expected, found = steps(full, all_busy, gradients), steps(rare, some_idle, without)
    assert found[0, 1].norm() > 0.01
    assert not found[1:, 1].any()
    torch.testing.assert_close(found[:, [0, 2, 3]], expected[:, [0, 2, 3]])


@pytest.mark.parametrize("rest", [0, 60])
def test_the_momentum_of_a_matrix_that_rests_decays(rest):
    """Its first gradient still turns a second one that comes at once; after a long rest it does not."""
    weights, optimizer = muon(8, 8)
    first, second = torch.randn(8, 8), torch.randn(8, 8)
    steps(weights, optimizer, [first, *[torch.zeros(8, 8)] * rest])
    torch.testing.assert_close(optimizer.state[weights]["momentum"], first * 0.95**rest, rtol=1e-4, atol=0)
    turned = steps(weights, optimizer, [second])
    fresh, alone = muon(8, 8)
    apart = (turned - steps(fresh, alone, [second])).norm() / turned.norm()
    assert apart > 0.2 if rest == 0 else apart < 0.1, apart


def test_experts_that_a_batch_did_not_reach_stay_as_they_are_in_a_whole_decoder():
    decoder = Decoder(
        ModelConfig(vocab_size=64, width=32, layers=2, heads=4, head_width=8, experts=16, expert_width=16)
    )
    decoder.initialise(0)
    optimizer = build_optimizer(decoder.named_parameters(), OptimizerConfig())
    named = dict(decoder.named_parameters())
    stacks = [name for name, each in named.items() if name.startswith("blocks.") and each.dim() == 3]
    assert stacks
    for first in (1, 40):  # the second step trains other tokens: what the first has left in the momentum does nothing
        before = {name: named[name].detach().clone() for name in stacks}
        output = decoder(torch.arange(first, first + 3), torch.arange(3), PackedAttention([3]))
        decoder.logits(output.hidden_ND).logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for name in stacks:
            moved = (named[name].detach() - before[name]).flatten(1).any(dim=1).nonzero().flatten().tolist()
            seen = output.routing.experts_NLK[:, int(name.split(".")[1])].unique().tolist()
            assert moved == seen and len(seen) < 16, name


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_moments_in_bf16_take_half_the_room_and_nearly_the_same_steps(name):
    ends, sizes = [], []
    for form in ("fp32", "bf16"):
        weights, optimizer = stepped(OptimizerConfig(name=name, lr=0.01, format=form))
        ends.append(weights)
        state = [value for each in optimizer.optimizers for held in each.state.values() for value in held.values()]
        sizes.append(sum(value.nbytes for value in state if value.dim() > 0))
    assert sizes[1] == sizes[0] / 2
    start = torch.ones(12, 8)
    apart = (ends[1] - ends[0]).norm() / (ends[0] - start).norm()
    assert 0 < apart < 0.02, apart


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_moments_in_bf16_are_taken_up_as_they_were(name):
    config = OptimizerConfig(name=name, lr=0.01, format="bf16")
    assert torch.equal(stepped(config, taken_up_after=4)[0], stepped(config)[0])


def stepped(config, taken_up_after=None):
    """Ten steps, in the middle of which another optimizer may go on from what a checkpoint would hold."""
    weights = nn.Parameter(torch.ones(12, 8))
    optimizer = build_optimizer([("blocks.0.attention.q_proj.weight", weights)], config)
    generator = torch.Generator().manual_seed(0)
    for number in range(10):
        if number == taken_up_after:
            state = optimizer.state_dict()
            optimizer = build_optimizer([("blocks.0.attention.q_proj.weight", weights)], config)
            optimizer.load_state_dict(state)
        weights.grad = torch.randn(12, 8, generator=generator)
        optimizer.step()
    return weights.detach().clone(), optimizer

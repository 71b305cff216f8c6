"""The experts' kernels against plain torch: results, gradients, and bits that no neighbour changes."""

import pytest
import torch
from torch.nn import functional as F

from etude.kernels.experts import run_experts


def plain(x, experts, gates, gate_up, down):
    gate, up = torch.einsum("nd,nkdf->nkf", x, gate_up[experts]).chunk(2, dim=-1)
    return (torch.einsum("nkf,nkfd->nkd", F.silu(gate) * up, down[experts]) * gates[..., None]).sum(1)


def given(tokens, width, inner, top_k=3, experts=5):
    torch.manual_seed(tokens)
    chosen = torch.stack([torch.randperm(experts - 1)[:top_k] for _ in range(tokens)])  # nobody asks the last one
    shapes = ((tokens, width), (tokens, top_k), (experts, width, 2 * inner), (experts, inner, width))
    x, gates, gate_up, down = ((torch.randn(*shape) * 0.3).requires_grad_() for shape in shapes)
    return x, chosen, gates, gate_up, down


@pytest.mark.parametrize(("tokens", "width", "inner"), [(1, 16, 16), (7, 24, 8), (230, 64, 40)])
def test_results_and_gradients_are_torchs(tokens, width, inner):
    all_given = given(tokens, width, inner)
    results = run_experts(*all_given), plain(*all_given)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    wanted, weights = [each for each in all_given if each.requires_grad], torch.randn(tokens, width)
    gradients = [torch.autograd.grad((result * weights).sum(), wanted) for result in results]
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_token_has_the_same_bits_whoever_goes_with_it(dtype):
    x, *choices, gate_up, down = (each.to(dtype) if each.is_floating_point() else each for each in given(150, 24, 40))
    whole = run_experts(x, *choices, gate_up, down)
    for part in (slice(0, 1), slice(3, 5), slice(20, 27), slice(50, 149)):
        assert torch.equal(run_experts(x[part], *(each[part] for each in choices), gate_up, down), whole[part])

"""Rows of products have the same bits however many there are, and products and their gradients are torch's."""

import pytest
import torch

from etude.kernels import rows

SHAPES = [(128, 128), (128, 64), (128, 8), (128, 1024), (256, 512), (32, 8), (8, 33), (1100, 256), (300, 100)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "out"), SHAPES)
def test_a_row_has_the_same_bits_among_any_others(width, out, dtype):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, width, generator=generator).to(dtype) for n in (300, out))
    with torch.no_grad():
        whole = rows.linear(x, weight)
        for count in (*range(1, 14), 95, 96, 97, 200):
            for start in (0, 300 - count):
                assert torch.equal(rows.linear(x[start : start + count], weight), whole[start : start + count])
    assert whole.dtype == dtype
    theirs = torch.nn.functional.linear(x.float(), weight.float()).to(dtype)
    torch.testing.assert_close(whole, theirs, atol=1e-5 * width**0.5, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_long_products_round_no_more_than_torchs():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 4096, generator=generator) for n in (40, 60))
    exact = x.double() @ weight.double().T
    with torch.no_grad():
        own, theirs = ((each - exact).square().mean().sqrt() for each in (rows.linear(x, weight), x @ weight.T))
    assert own <= theirs


def test_gradients_are_torchs():
    x, weight = torch.randn(7, 3, 8, requires_grad=True), torch.randn(3, 8, 5, requires_grad=True)
    mine = torch.autograd.grad(rows.products(x, weight, weight).square().sum(), (x, weight))
    theirs = torch.autograd.grad(torch.einsum("mbk,bkn->mbn", x, weight).square().sum(), (x, weight))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_written_weights_are_packed_anew_and_views_of_one_parameter_apart():
    x, weight = torch.ones(1, 4), torch.ones(4, 4)
    with torch.no_grad():
        assert rows.linear(x, weight).tolist() == [[4.0] * 4]
        weight[0] = 2.0
        assert rows.linear(x, weight).tolist() == [[8.0, 4.0, 4.0, 4.0]]
        assert rows.products(x[:, None], weight[None], weight).tolist() == [[[5.0] * 4]]


def test_several_threads_give_the_same_bits():
    x, weight = torch.randn(1000, 64), torch.randn(48, 64)
    with torch.no_grad():
        alone, before = rows.linear(x, weight), torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert torch.equal(rows.linear(x, weight), alone)
        finally:
            torch.set_num_threads(before)

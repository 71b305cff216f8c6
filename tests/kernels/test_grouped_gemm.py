"""The three grouped products: the reference against dequantised operands, the Triton kernels against the reference."""

import pytest
import torch
from proofs import one_of_each

from etude.kernels import grouped_gemm, mxfp8, nvfp4

torch.set_num_threads(1)


def problem(experts=3, inputs=160, outputs=96, seed=0):
    """Rows sorted by expert: one expert has none, one more than a tile."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([130, 0, 9, 40, 1][:experts])
    rows = int(counts.sum())
    spread = torch.exp2(torch.randint(-6, 6, (rows, 1), generator=generator).float())
    x = torch.randn(rows, inputs, generator=generator) * spread
    weight = torch.randn(experts, inputs, outputs, generator=generator) / inputs**0.5
    grad = torch.randn(rows, outputs, generator=generator)
    return x, weight, grad, counts.cumsum(0), torch.repeat_interleave(torch.arange(experts), counts)


def through(x, axis):
    """x as MXFP8 blocked along an axis remembers it."""
    return mxfp8.dequantise(mxfp8.quantise(x.transpose(axis, -1).contiguous())).transpose(axis, -1)


def test_reference_multiplies_what_the_codes_stand_for():
    x, weight, grad, ends, owner = problem()
    y = grouped_gemm.forward(x, weight, ends, "mxfp8")
    wanted = torch.einsum("mk,mkn->mn", through(x, 1).double(), through(weight, 1).double()[owner])
    torch.testing.assert_close(y.double(), wanted, rtol=1e-6, atol=1e-6)
    transposed = weight.transpose(1, 2).contiguous()
    remembered = nvfp4.dequantise(nvfp4.quantise(transposed, nvfp4.matrix_scales(transposed)))
    y = grouped_gemm.forward(x, weight, ends, "nvfp4")
    wanted = torch.einsum("mk,mnk->mn", nvfp4.dequantise(nvfp4.quantise(x)).double(), remembered.double()[owner])
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-6)
    dx = grouped_gemm.data_gradient(grad, weight, ends)
    wanted = torch.einsum("mn,mkn->mk", through(grad, 1).double(), through(weight, 2).double()[owner])
    torch.testing.assert_close(dx.double(), wanted, rtol=1e-6, atol=1e-6)
    dw = grouped_gemm.weight_gradient(x, grad, ends)
    start = 0
    for expert, stop in enumerate(ends.tolist()):
        missing = -(stop - start) % 32  # a block of tokens never spans two experts
        a, b = (torch.nn.functional.pad(t[start:stop], (0, 0, 0, missing)) for t in (x, grad))
        wanted = through(a, 0).double().T @ through(b, 0).double()
        torch.testing.assert_close(dw[expert].double(), wanted, rtol=1e-5, atol=1e-4)
        start = stop


def test_reference_is_near_the_unquantised_product():
    x, weight, _, ends, owner = problem()
    exact = torch.einsum("mk,mkn->mn", x, weight[owner])
    errors = [
        (grouped_gemm.forward(x, weight, ends, form) - exact).norm() / exact.norm() for form in ("mxfp8", "nvfp4")
    ]
    assert 0.01 < errors[0] < 0.06 < errors[1] < 0.2


@pytest.mark.parametrize("form", one_of_each(4, ["mxfp8", "nvfp4"]))
def test_triton_products_equal_the_reference(form):
    kernels = pytest.importorskip("etude.kernels.triton_grouped_gemm", reason="needs Triton: the dev extra")
    x, weight, _, ends, _ = problem()
    got, wanted = kernels.forward(x, weight, ends, form), grouped_gemm.forward(x, weight, ends, form)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max())


@pytest.mark.proof(6)
def test_triton_gradients_equal_the_reference():
    """The long form: small ones are compared in test_low_precision."""
    kernels = pytest.importorskip("etude.kernels.triton_grouped_gemm", reason="needs Triton: the dev extra")
    x, weight, grad, ends, _ = problem()
    got, wanted = kernels.data_gradient(grad, weight, ends), grouped_gemm.data_gradient(grad, weight, ends)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max())
    got, wanted = kernels.weight_gradient(x, grad, ends), grouped_gemm.weight_gradient(x, grad, ends)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max())
    assert (got[1] == 0).all()  # the expert without tokens


@pytest.mark.parametrize("form", one_of_each(4, ["mxfp8", "nvfp4"]))
def test_triton_products_do_not_depend_on_the_batch_and_keep_a_nan_in_its_row(form):
    kernels = pytest.importorskip("etude.kernels.triton_grouped_gemm", reason="needs Triton: the dev extra")
    x, weight, _, _, _ = problem(experts=1, inputs=96, outputs=32)
    whole = kernels.forward(x, weight, torch.tensor([130]), form)
    alone = kernels.forward(x[:7], weight, torch.tensor([7]), form)
    assert torch.equal(whole[:7], alone)
    broken = x[:8].clone()
    broken[3, 50] = torch.nan
    rows_lost = kernels.forward(broken, weight, torch.tensor([8]), form).isnan()
    assert rows_lost[3].all()
    assert not rows_lost[[0, 1, 2, 4, 5, 6, 7]].any()

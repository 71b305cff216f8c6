"""Experts of a few tokens: the reference against a plain computation, the Triton kernels against the reference."""

import pytest
import torch
from proofs import one_of_each
from torch.nn import functional as F

from etude.errors import ConfigError
from etude.kernels import moe_decode

torch.set_num_threads(1)
triton_moe_decode = pytest.importorskip("etude.kernels.triton_moe_decode", reason="needs Triton: the dev extra")


def problem(tokens, top_k, experts=5, width=96, hidden=64, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator)

    scores = drawn(tokens, experts).softmax(-1)
    gates, chosen = scores.topk(top_k, dim=-1)
    gate_up, down = drawn(experts, width, 2 * hidden) / width**0.5, drawn(experts, hidden, width) / hidden**0.5
    return drawn(tokens, width).to(dtype), chosen, gates, gate_up.to(dtype), down.to(dtype)


def one_by_one(x, chosen, gates, gate_up, down):
    """In fp64, a token and an expert at a time."""
    rows = []
    for token, experts, weights in zip(x.double(), chosen.tolist(), gates.double(), strict=True):
        row = torch.zeros_like(token)
        for expert, weight in zip(experts, weights, strict=True):
            gate, up = (token @ gate_up[expert].double()).chunk(2)
            row += weight * ((F.silu(gate) * up) @ down[expert].double())
        rows.append(row)
    return torch.stack(rows)


def test_the_reference_is_the_plain_computation():
    x, chosen, gates, gate_up, down = problem(7, 3)
    out = moe_decode.moe_decode(x, chosen, gates, moe_decode.Experts.of(gate_up, down))
    torch.testing.assert_close(out.double(), one_by_one(x, chosen, gates, gate_up, down), rtol=1e-5, atol=1e-6)


SHAPES = [
    {"tokens": 1, "top_k": 1}, {"tokens": 1, "top_k": 8, "experts": 8}, {"tokens": 3, "top_k": 2},
    {"tokens": 1, "top_k": 2, "width": 544, "hidden": 32}, {"tokens": 1, "top_k": 2, "width": 32, "hidden": 544},
    {"tokens": 5, "top_k": 2}, {"tokens": 2, "top_k": 2, "width": 32, "hidden": 1056},
]  # fmt: skip


FORMS = [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True)]


def form_of(shape, dtype, as_mxfp8):
    """Each form of numbers, and in the first of them rows of more than one block as well."""
    return (dtype, as_mxfp8, (dtype, as_mxfp8) == FORMS[0] and shape.get("width", 0) > 500)


@pytest.mark.parametrize(
    ("shape", "dtype", "as_mxfp8"),
    one_of_each(1.5, [(shape, *form) for shape in SHAPES for form in FORMS], form_of),
    ids=str,
)
def test_triton_equals_the_reference(shape, dtype, as_mxfp8):
    x, chosen, gates, gate_up, down = problem(**shape, dtype=dtype)
    experts = moe_decode.Experts.of(gate_up, down, as_mxfp8)
    got = triton_moe_decode.moe_decode(x, chosen, gates, experts)
    assert got.dtype == dtype
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-3}
    torch.testing.assert_close(got, moe_decode.moe_decode(x, chosen, gates, experts), **tolerance)


def test_widths_that_fill_no_program_are_whole_all_the_same():
    x, chosen, gates, gate_up, down = problem(3, 2, width=27, hidden=13)
    experts = moe_decode.Experts.of(gate_up, down)
    got = triton_moe_decode.moe_decode(x, chosen, gates, experts)
    torch.testing.assert_close(got, moe_decode.moe_decode(x, chosen, gates, experts), rtol=1e-5, atol=1e-5)


def test_it_is_nearer_to_the_exact_product_than_bf16_buffers_are():
    """The usual path rounds between its stages; this one keeps fp32 from end to end and rounds once."""
    x, chosen, gates, gate_up, down = problem(4, 3, dtype=torch.bfloat16, width=128, hidden=64)
    exact = one_by_one(x, chosen, gates, gate_up, down)
    got = triton_moe_decode.moe_decode(x, chosen, gates, moe_decode.Experts.of(gate_up, down))
    usual = torch.zeros_like(x)
    for slot in range(3):
        chunks = torch.einsum("nd,ndf->nf", x, gate_up[chosen[:, slot]]).chunk(2, -1)
        outputs = torch.einsum("nf,nfd->nd", F.silu(chunks[0]) * chunks[1], down[chosen[:, slot]])
        usual = usual + gates[:, slot, None].bfloat16() * outputs
    assert (got.double() - exact).norm() < 0.7 * (usual.double() - exact).norm()


@pytest.mark.parametrize("as_mxfp8", one_of_each(4, [False, True]))
def test_a_token_has_the_same_bits_in_any_batch(as_mxfp8):
    x, chosen, gates, gate_up, down = problem(4, 2, dtype=torch.bfloat16)
    experts = moe_decode.Experts.of(gate_up, down, as_mxfp8)
    together = triton_moe_decode.moe_decode(x, chosen, gates, experts)
    for at in range(4):
        alone = triton_moe_decode.moe_decode(x[at : at + 1], chosen[at : at + 1], gates[at : at + 1], experts)
        assert torch.equal(alone[0], together[at])


def test_nan_stays_and_no_tokens_are_no_tokens():
    x, chosen, gates, gate_up, down = problem(2, 2, dtype=torch.bfloat16)
    experts = moe_decode.Experts.of(gate_up, down)
    x[1, 3] = torch.nan
    got = triton_moe_decode.moe_decode(x, chosen, gates, experts)
    assert got[1].isnan().all()
    assert not got[0].isnan().any()
    assert triton_moe_decode.moe_decode(x[:0], chosen[:0], gates[:0], experts).shape == (0, 96)


def test_what_does_not_fit_is_refused():
    x, chosen, gates, gate_up, down = problem(2, 2)
    good = moe_decode.Experts.of(gate_up, down)
    for wrong in (good._replace(gate_up=gate_up), good._replace(down=down), good._replace(down=good.down.half())):
        with pytest.raises(ConfigError):
            triton_moe_decode.moe_decode(x, chosen, gates, wrong)

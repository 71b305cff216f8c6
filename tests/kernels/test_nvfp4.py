"""The NVFP4 reference against torchao's bytes; a scale per token keeps tokens apart, a scale per tensor does not."""

import pytest
import torch
from quantise_inputs import cases, e2m1_values, midpoints
from torch import Tensor

from etude.errors import ConfigError
from etude.kernels import grouped_gemm, mxfp8, nvfp4

CASES = cases()
NAN = mxfp8.E4M3_NAN


def torchao_nvfp4(x: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    pytest.importorskip("torchao", reason="byte-level comparison needs the dev extra")
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    scales, codes = nvfp4_quantize(x.contiguous(), nvfp4.BLOCK, outer)
    return scales.view(torch.uint8), codes


def unpack(codes: Tensor) -> Tensor:
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_torchaos(name, dtype):
    """Scales always. Codes too, but where torchao's product with a reciprocal crosses a boundary that division does
    not: there the quotient lies within three units in the last place of a midpoint."""
    x = CASES[name].to(dtype)
    ours = nvfp4.quantise(x)
    scales, codes = torchao_nvfp4(x, ours.outer)
    unknown = scales & 0x7F == NAN
    assert torch.equal(ours.scales == NAN, unknown)
    assert torch.equal(ours.scales[~unknown], scales[~unknown])
    known = ~unknown.repeat_interleave(nvfp4.BLOCK, -1)
    apart = known & (unpack(ours.codes) != unpack(codes))
    assert name == "e2m1 boundaries" or apart.float().mean() < 0.002
    divisor = ours.scales.view(torch.float8_e4m3fn).double() * ours.outer.double()
    quotient = (x.double() / divisor.repeat_interleave(nvfp4.BLOCK, -1)).abs()[apart]
    middles = midpoints(e2m1_values())[:7].double()
    assert ((quotient[:, None] / middles - 1).abs().amin(-1) < 3 * 2.0**-23).all()
    assert unknown.any() != x.isfinite().all()


def test_boundary_codes_are_torchaos_byte_for_byte_where_its_reciprocal_is_exact():
    x = CASES["e2m1 boundaries"]
    for outer in (1.0, 2.0**-20, 2.0**13):
        scale = torch.full((len(x), 1), outer)
        ours = nvfp4.quantise(x * outer, scale)
        scales, codes = torchao_nvfp4(x * outer, scale)
        assert torch.equal(ours.scales, scales)
        assert torch.equal(ours.codes, codes)
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.kernels import f32_to_f4_unpacked

    values = torch.cat((midpoints(e2m1_values()), torch.tensor([5.999, 6.001, 7.0, 1e30, torch.inf, 1e-40])))
    values = torch.cat((values, -values))
    assert torch.equal(nvfp4.encode_e2m1(values), f32_to_f4_unpacked(values))


@pytest.mark.parametrize("name", ["random", "largest"])
def test_a_scale_per_tensor_is_torchaos_format(name):
    x = CASES[name]
    outer = (x.abs().max() / (448 * 6)).clamp(min=nvfp4.SMALLEST_OUTER_SCALE)
    ours = nvfp4.quantise(x, outer.expand(len(x), 1))
    scales, codes = torchao_nvfp4(x, outer)
    assert torch.equal(ours.scales, scales)
    assert (unpack(ours.codes) != unpack(codes)).float().mean() < 0.002


def test_round_trip_and_what_is_not_finite():
    exact = e2m1_values().repeat(1, 8) * torch.tensor([1.0, -1.0]).repeat(32)
    assert torch.equal(nvfp4.dequantise(nvfp4.quantise(exact, torch.ones(1, 1))), exact)
    assert torch.equal(nvfp4.dequantise(nvfp4.quantise(CASES["zero"][:3])), torch.zeros(3, 128))
    poisoned = nvfp4.dequantise(nvfp4.quantise(CASES["NaN"])).isnan().all(-1)
    assert torch.equal(poisoned, CASES["NaN"].isnan().any(-1))
    assert nvfp4.dequantise(nvfp4.quantise(CASES["infinite"]))[:3].isnan().all()
    x = CASES["random"]
    assert (nvfp4.dequantise(nvfp4.quantise(x)) - x).norm() / x.norm() < 0.12
    with pytest.raises(ConfigError, match="multiple of 16"):
        nvfp4.quantise(torch.zeros(2, 24))


# --- what a token's code may depend on -------------------------------------------------------------------------------


def per_token(x: Tensor) -> nvfp4.NVFP4:
    return nvfp4.quantise(x)


def per_tensor(x: Tensor) -> nvfp4.NVFP4:
    return nvfp4.quantise(x, nvfp4.row_scales(x.flatten()).expand(len(x), 1))


def same(a: nvfp4.NVFP4, b: nvfp4.NVFP4, rows: slice) -> bool:
    return all(torch.equal(left[rows], right[rows]) for left, right in zip(a, b, strict=True))


def future_leaks(quantise) -> bool:
    """Whether codes of a sequence's first half change when its second half does."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[16:] *= 37.0
    return not same(quantise(x), quantise(other), slice(0, 16))


def batch_leaks(quantise) -> bool:
    """Whether codes of a sequence change when it shares its batch with another."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2))
    company = torch.cat((x, 3 * torch.randn(48, 64, generator=torch.Generator().manual_seed(3))))
    return not same(quantise(x), quantise(company), slice(0, 16))


def test_a_scale_per_token_leaks_nothing_and_a_scale_per_tensor_leaks_both_ways():
    assert not future_leaks(per_token)
    assert not batch_leaks(per_token)
    assert future_leaks(per_tensor)
    assert batch_leaks(per_tensor)


@pytest.mark.parametrize("rows", [1, 3, 16, 40])
def test_a_tokens_output_has_the_same_bits_in_any_batch_and_before_any_future(rows):
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(40, 256, generator=generator), torch.randn(2, 256, 64, generator=generator)
    whole = grouped_gemm.forward(x, weight, torch.tensor([0, 40]), "nvfp4")
    alone = grouped_gemm.forward(x[:rows], weight, torch.tensor([0, rows]), "nvfp4")
    assert torch.equal(whole[:rows], alone)
    changed = torch.cat((x[:rows], 1e3 * x[rows:]))
    assert torch.equal(grouped_gemm.forward(changed, weight, torch.tensor([0, 40]), "nvfp4")[:rows], alone)


def test_the_sum_of_nvfp4_products_does_not_depend_on_its_order():
    """Why the test above may ask for equal bits: fp64 sums of these products are exact."""
    generator = torch.Generator().manual_seed(4)
    x, weight = torch.randn(8, 1024, generator=generator), torch.randn(1, 1024, 32, generator=generator)
    order = torch.randperm(64, generator=generator)[:, None] * 16 + torch.arange(16)
    shuffled = grouped_gemm.forward(x[:, order.flatten()], weight[:, order.flatten()], torch.tensor([8]), "nvfp4")
    assert torch.equal(shuffled, grouped_gemm.forward(x, weight, torch.tensor([8]), "nvfp4"))

"""The MXFP8 reference: byte for byte torchao's, and exact where torchao's eager code is not."""

from fractions import Fraction

import pytest
import torch
from quantise_inputs import INFINITY, WIDTH, cases, e4m3_values
from torch import Tensor

from etude.errors import ConfigError
from etude.kernels import mxfp8, scale_layout

CASES = cases()


def torchao_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    pytest.importorskip("torchao", reason="byte-level comparison needs the dev extra")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scales, codes = to_mx(x.contiguous(), torch.float8_e4m3fn, mxfp8.BLOCK, ScaleCalculationMode.RCEIL)
    return scales.view(torch.uint8), codes.view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_bytes_are_torchaos(name, dtype):
    x = CASES[name].to(dtype)
    ours = mxfp8.quantise(x)
    scales, codes = torchao_mxfp8(x)
    assert torch.equal(ours.scales, scales)
    unknown = (scales == mxfp8.E8M0_NAN).repeat_interleave(mxfp8.BLOCK, -1)
    assert torch.equal(ours.codes[~unknown], codes[~unknown])
    assert (ours.codes[unknown] == mxfp8.E4M3_NAN).all()
    assert (codes[unknown] & 0x7F == mxfp8.E4M3_NAN).all()  # theirs keep a NaN's sign
    assert unknown.any() == x.isnan().any()


def test_scale_is_the_least_power_of_two_that_saturates_nothing():
    """Beside 448 * 2^k, where a logarithm in fp32 is a step off."""
    powers = torch.exp2(torch.arange(-100, 100).float())
    for largest in (448 * powers, torch.nextafter(448 * powers, INFINITY), torch.nextafter(448 * powers, -INFINITY)):
        x = torch.zeros(len(largest), mxfp8.BLOCK)
        x[:, 9] = largest
        for scale, amax in zip(mxfp8.quantise(x).scales[:, 0].tolist(), largest.tolist(), strict=True):
            assert Fraction(amax) <= 448 * Fraction(2) ** (scale - 127)
            assert Fraction(amax) > 448 * Fraction(2) ** (scale - 128)


def test_values_of_the_format_survive_and_others_go_to_the_nearest():
    exact = torch.nn.functional.pad(e4m3_values(), (0, 1), value=448.0).view(4, mxfp8.BLOCK)
    exact[:, 0] = 448
    for power in (-120, -10, 0, 60):
        x = exact * 2.0**power
        assert torch.equal(mxfp8.dequantise(mxfp8.quantise(x)), x)
    x = CASES["random"]
    error = (mxfp8.dequantise(mxfp8.quantise(x)) - x).abs().unflatten(-1, (-1, mxfp8.BLOCK))
    amax = x.abs().unflatten(-1, (-1, mxfp8.BLOCK)).amax(-1, keepdim=True)
    assert (error <= amax / 448 * 2 * 16).all()  # half a step of the topmost binade, the scale at most doubled


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 5), (300, 9), (7, 128)])
def test_scale_layout_is_torchaos_and_comes_back(shape):
    pytest.importorskip("torchao", reason="byte-level comparison needs the dev extra")
    from torchao.prototype.mx_formats.utils import to_blocked

    scales = torch.randint(0, 256, shape, dtype=torch.uint8)
    atoms = scale_layout.swizzle(scales)
    assert torch.equal(atoms.flatten(), to_blocked(scales))
    assert torch.equal(scale_layout.unswizzle(atoms, *shape), scales)
    assert atoms.shape == scale_layout.empty_atoms(*shape, torch.device("cpu")).shape


def test_a_width_that_is_not_whole_blocks_is_refused():
    with pytest.raises(ConfigError, match="multiple of 32"):
        mxfp8.quantise(torch.zeros(2, WIDTH - 8))

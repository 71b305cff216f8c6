"""The Triton quantise kernels, in the interpreter, byte for byte against the references."""

import pytest
import torch
from proofs import one_of_each
from quantise_inputs import cases

from etude.errors import ConfigError
from etude.kernels import mxfp8, nvfp4
from etude.kernels.groups import Groups
from etude.kernels.scale_layout import swizzle

triton_quantise = pytest.importorskip("etude.kernels.triton_quantise", reason="needs Triton: the dev extra")
CASES = cases()
torch.set_num_threads(1)


def sorted_rows(dtype=torch.float32):
    """Every case, stacked; groups of one row, of none, of a tile and a bit."""
    x = torch.cat(list(CASES.values())).to(dtype)
    ends = torch.tensor([1, 1, 140, 150, len(x)])
    return x, Groups.of(ends, len(x))


@pytest.mark.parametrize(("dtype", "swizzled"), one_of_each(0.8, [(torch.float32, True), (torch.bfloat16, False)]))
def test_mxfp8_rows(dtype, swizzled):
    x, groups = sorted_rows(dtype)
    got, wanted = triton_quantise.mxfp8_rows(x, groups, swizzled), mxfp8.quantise(x)
    scales = groups.pad(wanted.scales)
    assert torch.equal(got.codes, wanted.codes)
    assert torch.equal(got.scales, swizzle(scales) if swizzled else scales)


@pytest.mark.parametrize(("dtype", "swizzled"), one_of_each(0.8, [(torch.float32, True), (torch.bfloat16, False)]))
def test_mxfp8_columns(dtype, swizzled):
    x, groups = sorted_rows(dtype)
    got, wanted = triton_quantise.mxfp8_columns(x, groups, swizzled), mxfp8.quantise(groups.pad(x).T.contiguous())
    assert torch.equal(got.codes, wanted.codes)
    assert torch.equal(got.scales, swizzle(wanted.scales) if swizzled else wanted.scales)


@pytest.mark.parametrize(("dtype", "swizzled"), one_of_each(6, [(torch.float32, True), (torch.bfloat16, False)]))
def test_nvfp4_rows(dtype, swizzled):
    x, groups = sorted_rows(dtype)
    got, wanted = triton_quantise.nvfp4_rows(x, groups, None, swizzled), nvfp4.quantise(x)
    scales = groups.pad(wanted.scales)
    assert torch.equal(got.outer.nan_to_num(-1), wanted.outer.nan_to_num(-1))
    assert torch.equal(got.codes, wanted.codes)
    assert torch.equal(got.scales, swizzle(scales) if swizzled else scales)


@pytest.mark.proof(3.2)
def test_widths_that_fill_no_program_and_scales_that_are_given():
    weight = torch.randn(3, 40, 96 + 16, generator=torch.Generator().manual_seed(0))
    outer = nvfp4.matrix_scales(weight)
    matrices = Groups.uniform(3, 40, weight.device)
    flat = weight.view(120, -1)
    got, wanted = triton_quantise.nvfp4_rows(flat, matrices, outer.reshape(-1, 1)), nvfp4.quantise(weight, outer)
    assert torch.equal(got.codes.view_as(wanted.codes), wanted.codes)
    assert torch.equal(got.scales, swizzle(matrices.pad(wanted.scales.flatten(0, 1))))
    narrow = flat[:, :96].contiguous()
    got, wanted = triton_quantise.mxfp8_rows(narrow, matrices), mxfp8.quantise(narrow)
    assert torch.equal(got.codes, wanted.codes)
    assert torch.equal(got.scales, swizzle(matrices.pad(wanted.scales)))


def test_what_the_kernels_cannot_read_is_refused():
    groups = Groups.of(torch.tensor([2]), 2)
    with pytest.raises(TypeError, match="float16"):
        triton_quantise.mxfp8_rows(torch.zeros(2, 32, dtype=torch.float16), groups)
    with pytest.raises(ConfigError, match="multiple of 32"):
        triton_quantise.mxfp8_rows(torch.zeros(2, 40), groups)


@pytest.mark.parametrize("tile", [32, 128])
def test_groups_cover_every_row_once_and_no_tile_has_two_experts(tile):
    generator = torch.Generator().manual_seed(tile)
    for experts in (1, 5):
        counts = torch.randint(0, 200, (experts,), generator=generator)
        counts[1:3] = 0
        ends, rows = counts.cumsum(0), int(counts.sum())
        owner = torch.repeat_interleave(torch.arange(experts), counts)
        groups = Groups.of(ends, rows, tile)
        seen = []
        for expert, first, stop in torch.stack((groups.expert_T, groups.first_T, groups.stop_T), 1).tolist():
            assert stop - first <= tile
            assert (owner[first:stop] == expert).all()
            seen += range(first, stop)
        assert seen == list(range(rows))
        x = torch.arange(1.0, rows + 1)[:, None]
        padded = groups.pad(x)
        assert torch.equal(padded[padded > 0], x[:, 0])
        for expert, stop in enumerate((groups.tile_ends_E * tile).tolist()):
            assert int((padded[:stop] > 0).sum()) == int(ends[expert])

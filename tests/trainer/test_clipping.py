"""Gradients that are far longer than those before them."""

import math

import pytest
import torch
from torch import nn

from etude.trainer.clipping import WINDOW, GradientClip


def cut(clip, length):
    """A gradient of that length over two parameters, cut: whether that acted, and its length then."""
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(5))]
    parameters[0].grad = torch.tensor([0.6, 0.0]) * length
    parameters[1].grad = torch.full((3, 4), 0.8 / math.sqrt(12)) * length
    norm, acted = (each.item() for each in clip.cut(parameters))
    assert norm == pytest.approx(length, rel=1e-5) or not math.isfinite(length)
    return acted, float(torch.cat([each.grad.flatten() for each in parameters[:2]]).norm())


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e4])
def test_a_spike_is_cut_to_so_many_times_the_median_whatever_the_scale(scale):
    clip = GradientClip(4.0)
    for length in (1, 2, 3, 4, 9):
        assert cut(clip, length * scale) == (False, pytest.approx(length * scale, rel=1e-5))
    assert cut(clip, 11.9 * scale)[0] is False, "the median is 3"
    assert cut(clip, 100 * scale) == (True, pytest.approx(4 * 3.5 * scale, rel=1e-5))


def test_too_few_norms_are_no_measure():
    clip = GradientClip(4.0)
    assert [cut(clip, length)[0] for length in (1, 100, 1, 1, 100)] == [False, False, False, False, True]


def test_a_lasting_change_of_scale_is_soon_the_usual():
    clip = GradientClip(4.0)
    assert not any(cut(clip, 1)[0] for _ in range(WINDOW))
    acted = [cut(clip, 50)[0] for _ in range(WINDOW)]
    assert acted == [True] * (WINDOW // 2) + [False] * (WINDOW // 2)


@pytest.mark.parametrize("odd", [0.0, math.inf, math.nan])
def test_what_is_no_length_is_neither_cut_nor_remembered(odd):
    clip = GradientClip(4.0)
    for _ in range(5):
        cut(clip, 1)
    before = clip.state_dict()
    assert cut(clip, odd)[0] is False
    assert clip.state_dict() == before == [pytest.approx(1)] * 5


def test_a_clip_that_is_taken_up_again_goes_on_as_it_would_have():
    straight, first, second = GradientClip(2.0), GradientClip(2.0), GradientClip(2.0)
    lengths = [1 + (at * 7 % 13) for at in range(40)]
    expected = [cut(straight, length) for length in lengths]
    found = [cut(first, length) for length in lengths[:20]]
    second.load_state_dict(first.state_dict())
    assert found + [cut(second, length) for length in lengths[20:]] == expected
    assert 0 < sum(acted for acted, _ in expected) < 40

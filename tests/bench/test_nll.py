"""NLL against reinforcement learning: the figures of `benchmarks/nll.py`, by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import nll


def test_a_line_has_the_slope_and_the_interval_of_least_squares():
    """What is left of y is -.3, .9, -.9 and .3: a variance of .9 by two degrees of freedom; the spread of x is 5."""
    line = nll.fitted([1, 2, 3, 4], [1, 3, 2, 4])
    assert line is not None and line["bases"] == 4
    wide = 4.303 * (0.9 / 5) ** 0.5
    assert line["slope"] == pytest.approx(0.8) and line["at_zero"] == pytest.approx(0.5)
    assert line["interval"] == pytest.approx([0.8 - wide, 0.8 + wide])


@pytest.mark.parametrize(("x", "y"), [([], []), ([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3])])
def test_no_line_goes_through_two_points_or_through_one_x(x, y):
    assert nll.fitted(x, y) is None


def test_a_base_counts_when_it_has_been_trained_and_by_the_mean_of_its_seeds(tmp_path):
    for name, at, before in (("a", 0.3, 0.0), ("b", 0.2, 0.1), ("c", 0.1, 0.2), ("untrained", 9.0, 0.0)):
        (tmp_path / f"base-{name}.json").write_text(json.dumps({"name": name, "nll": at, "solved": before}))
    for name, seed, solved in (("a", 0, 0.2), ("a", 1, 0.4), ("b", 0, 0.5), ("c", 0, 0.7)):
        (tmp_path / f"after-{name}-{seed}.json").write_text(json.dumps({"solved": solved}))
    found = nll.report(tmp_path)
    assert len(found["bases"]) == 4
    assert found["line"]["slope"] == pytest.approx(-2) and found["line"]["bases"] == 3
    assert found["gain"]["slope"] == pytest.approx(-1) and found["gain"]["at_zero"] == pytest.approx(0.6)
    assert (tmp_path / "nll.svg").exists()

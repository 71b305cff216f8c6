"""Top-k, top-p and min-p against their definitions, one row at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.engine.sampling import Truncation, distribution, draw, top_logprobs, uniform

ROWS = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12)
CUTS = st.builds(Truncation, st.integers(0, 14), st.floats(0.01, 1.0), st.floats(0.0, 1.0))


def kept_by_definition(logits, cut):
    """The tokens kept, as the fields say it: min-p and top-k first, then top-p on what they leave."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    weights = {token: math.exp(logits[token] - logits[order[0]]) for token in order}
    order = [t for at, t in enumerate(order) if weights[t] >= cut.min_p and (not cut.top_k or at < cut.top_k)]
    total, kept, have = sum(weights[t] for t in order), [], 0.0
    for token in order:
        if have / total >= cut.top_p and cut.top_p < 1:
            break
        kept.append(token)
        have += weights[token]
    return kept


@given(ROWS, CUTS)
def test_what_is_kept_is_what_the_fields_say(logits, cut):
    near = [abs(a - b) for at, a in enumerate(logits) for b in logits[:at]]
    if near and min(near) < 1e-3:
        return  # a tie: either may be kept
    expected = kept_by_definition(logits, cut)
    found = distribution(torch.tensor([logits]), [1.0], [cut])[0]
    kept = {token for token in range(len(logits)) if found[token] > -torch.inf}
    nudged = [kept_by_definition(logits, cut._replace(top_p=cut.top_p + d, min_p=cut.min_p + e))
              for d in (-1e-5, 0, 1e-5) for e in (-1e-5, 0, 1e-5)]  # fmt: skip
    assert kept in [set(expected), *map(set, nudged)]
    assert found.exp().sum() == pytest.approx(1, abs=1e-5)
    alone = torch.log_softmax(torch.tensor(logits)[sorted(kept)], 0)
    torch.testing.assert_close(found[sorted(kept)], alone, atol=1e-5, rtol=0)


@given(ROWS, CUTS, st.integers(0, 1 << 40))
def test_what_is_cut_is_never_drawn(logits, cut, seed):
    row = distribution(torch.tensor([logits]), [1.0], [cut])
    for number in (uniform(seed, 0), 0.0, 1 - 1e-12, 1.0):
        (token,) = draw(row, [1.0], [number])
        assert row[0, token] > -torch.inf


def test_a_row_has_the_same_bits_alone_and_among_others():
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0)) * 4
    cuts = [Truncation(top_k=n % 7, top_p=1 - n / 100, min_p=n / 1000) for n in range(64)]
    together = distribution(logits, [0.7] * 64, cuts)
    for row in range(64):
        alone = distribution(logits[row : row + 1], [0.7], [cuts[row]])
        assert torch.equal(alone[0], together[row])


def test_greedy_is_never_cut_and_its_distribution_is_the_models():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    cold = distribution(logits, [0.0], [Truncation(top_k=1)])
    assert torch.equal(cold, torch.log_softmax(logits, -1))
    assert draw(cold, [0.0], [0.999]) == [1]


def test_the_most_likely_come_first_and_only_those_that_can_be_sampled():
    row = distribution(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), [1.0], [Truncation(top_k=2)])[0]
    best = top_logprobs(row, 10)
    assert [token for token, _ in best] == [1, 3]
    assert sum(math.exp(logprob) for _, logprob in best) == pytest.approx(1)

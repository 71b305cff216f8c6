"""Products, norms and attention of one order: near torch's, and the same bits whatever else is computed with them."""

import random
import sys
from pathlib import Path

import pytest
import torch
from proofs import one_of_each
from torch.nn import functional as F

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/gpu"))
from timing import interpreted_dot

from etude.errors import ConfigError

torch.set_num_threads(1)
invariant = pytest.importorskip("etude.kernels.triton_invariant", reason="needs Triton: the dev extra")
interpreter = pytest.importorskip("triton.runtime.interpreter")
DTYPES = [torch.float32, torch.bfloat16]
NEAR = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2}}


@pytest.fixture(autouse=True)
def rows_apart(monkeypatch):
    """As on a device, so that the kernels' own order is tested."""
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", interpreted_dot)


@pytest.fixture(autouse=True)
def small_splits(monkeypatch):
    """Contexts of these tests are short; splits are made short too, so that there are several to merge."""
    monkeypatch.setattr(invariant, "SPLIT", 128)


def drawn(seed, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "outputs"), [(1, 32, 16), (3, 200, 130), (65, 64, 128), (0, 32, 16)])
def test_linear_is_torch_s(dtype, rows, width, outputs):
    x, weight = drawn(0, rows, width, dtype=dtype), drawn(1, outputs, width, dtype=dtype) / width**0.5
    out = invariant.linear(x, weight)
    assert out.dtype == dtype
    torch.testing.assert_close(out, F.linear(x, weight), **NEAR[dtype])


def test_rows_of_experts_are_multiplied_by_their_own_matrix_with_the_same_bits_whoever_shares_it():
    x, weight = drawn(0, 90, 48), drawn(1, 4, 48, 70)
    ends = torch.tensor([30, 30, 85, 90])
    whole = invariant.grouped_linear(x, weight, ends)
    parts = [x[:30] @ weight[0], x[30:85] @ weight[2], x[85:] @ weight[3]]
    torch.testing.assert_close(whole, torch.cat(parts), **NEAR[torch.float32])
    few = invariant.grouped_linear(x[[3, 40, 41]], weight, torch.tensor([1, 1, 3, 3]))
    assert torch.equal(few, whole[[3, 40, 41]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_product_has_the_same_bits_in_any_batch(dtype):
    x, weight = drawn(0, 130, 96, dtype=dtype), drawn(1, 70, 96, dtype=dtype)
    whole = invariant.linear(x, weight)
    for first, count in [(0, 1), (5, 1), (64, 1), (129, 1), (3, 2), (60, 9), (0, 64), (17, 100)]:
        assert torch.equal(invariant.linear(x[first : first + count], weight), whole[first : first + count])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [40, 1024, 2500])
def test_norms(dtype, width):
    x, weight = drawn(0, 9, width, dtype=dtype) * 3, drawn(1, width, dtype=dtype)
    out = invariant.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(out, F.rms_norm(x, (width,), weight, 1e-6), **NEAR[dtype])
    assert torch.equal(invariant.rms_norm(x[4:5], weight, 1e-6), out[4:5])
    assert invariant.rms_norm(x[:0], weight, 1e-6).shape == (0, width)


def sequences(lengths, heads=4, groups=2, channels=24, dtype=torch.float32, seed=0):
    total = sum(lengths)
    q, k, v = (drawn(seed + n, total, h, channels, dtype=dtype) for n, h in enumerate((heads, groups, groups)))
    return q, k, v, torch.tensor(lengths).cumsum(0)


def plain(q, k, v, ends):
    """A sequence at a time, with torch."""
    parts, start = [], 0
    for stop in ends.tolist():
        own = [x[start:stop].transpose(0, 1)[None].float() for x in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*own, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
        start = stop
    return torch.cat(parts).to(q.dtype)


SMALL = {"heads": 2, "groups": 1}


@pytest.mark.parametrize(("dtype", "heads"), one_of_each(6, [(DTYPES[0], SMALL), *((each, {}) for each in DTYPES)]))
def test_attention_is_torch_s(dtype, heads):
    q, k, v, ends = sequences([1, 70, 260], **heads, dtype=dtype)
    out = invariant.attention(q, k, v, ends, ends, 24**-0.5)
    torch.testing.assert_close(out, plain(q, k, v, ends), **NEAR[dtype])


CASES = [(DTYPES[0], 0, SMALL), *((dtype, seed, {}) for dtype in DTYPES for seed in range(2))]


@pytest.mark.parametrize(("dtype", "seed", "heads"), one_of_each(12, CASES), ids=str)
def test_a_query_has_the_same_bits_packed_alone_chunked_and_decoded(dtype, seed, heads):
    rng, lengths = random.Random(seed), [random.Random(seed + 9).randint(257, 300), 40, 7]
    q, k, v, ends = sequences(lengths, **heads, dtype=dtype, seed=seed)
    packed = invariant.attention(q, k, v, ends, ends, 0.2)
    length = lengths[0]
    at = 0
    while at < length:  # the first sequence again, in chunks of its own, each beside other sequences or not
        count = min(rng.choice([1, 1, 3, 17, 64, 100]), length - at)
        stop = at + count
        queries, keys, values = [q[at:stop]], [k[:stop]], [v[:stop]]
        if rng.random() < 0.5:  # a decoding neighbour, before it
            end = lengths[0] + lengths[1]
            queries, keys, values = (
                [part, *own]
                for part, own in (
                    (q[end - 1 : end], queries), (k[length:end], keys), (v[length:end], values),
                )
            )  # fmt: skip
        query_ends = torch.tensor([len(part) for part in queries]).cumsum(0)
        key_ends = torch.tensor([len(part) for part in keys]).cumsum(0)
        out = invariant.attention(torch.cat(queries), torch.cat(keys), torch.cat(values), query_ends, key_ends, 0.2)
        assert torch.equal(out[-count:], packed[at:stop]), (at, count)
        at = stop


@pytest.mark.parametrize("heads", one_of_each(4, [SMALL, {}]), ids=str)
def test_what_comes_later_is_not_seen(heads):
    q, k, v, ends = sequences([150], **heads)
    before = invariant.attention(q, k, v, ends, ends, 0.2)
    k[131:], v[131:] = 1e30, -1e30
    after = invariant.attention(q, k, v, ends, ends, 0.2)
    assert torch.equal(before[:131], after[:131])


def test_what_does_not_fit_is_refused():
    q, k, v, ends = sequences([4], heads=3, groups=2)
    with pytest.raises(ConfigError, match="3 query heads"):
        invariant.attention(q, k, v, ends, ends, 1.0)
    with pytest.raises(ConfigError, match="float16"):
        invariant.linear(torch.zeros(1, 2).half(), torch.zeros(1, 2).half())

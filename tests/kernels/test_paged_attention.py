"""The paged attention kernel against plain torch."""

import numpy as np
import pytest
import torch

from etude.kernels.packed_attention import packed_attention
from etude.kernels.paged_attention import PAGE, paged_attention, value_width


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 32), (4, 4, 16), (6, 1, 8), (8, 1, 36), (6, 2, 48)])
def test_equals_softmax_attention_and_does_not_depend_on_the_batch(heads, groups, width):
    rng = np.random.default_rng(0)
    batch, pages = 9, 60
    queries = rng.normal(size=(batch, heads, width)).astype(np.float32)
    keys, values = rng.normal(size=(2, pages, PAGE, groups, width)).astype(np.float32)
    turned = np.ascontiguousarray(keys.transpose(0, 2, 3, 1))
    padded = np.zeros((pages, PAGE, groups, value_width(width)), np.float32)
    padded[..., :width] = values
    lengths = rng.integers(1, 6 * PAGE, batch)
    tables = np.stack([rng.permutation(pages)[:6] for _ in range(batch)])
    out = np.empty_like(queries)
    every = np.arange(batch)
    paged_attention(queries, turned, padded, tables, every, every, lengths, width**-0.5, out)
    for b in range(batch):
        k, v = (torch.from_numpy(x[tables[b]]).flatten(0, 1)[: lengths[b]].transpose(0, 1) for x in (keys, values))
        q = torch.from_numpy(queries[b]).view(groups, heads // groups, width)
        expected = torch.softmax(q @ k.transpose(1, 2) / width**0.5, -1) @ v
        np.testing.assert_allclose(out[b], expected.reshape(heads, width), atol=2e-6)
        alone = np.empty_like(queries[:1])
        alone_at = every[:1], np.asarray([b]), lengths[b : b + 1]
        paged_attention(queries[b : b + 1], turned, padded, tables, *alone_at, width**-0.5, alone)
        assert (alone[0] == out[b]).all()


def families(rng, page_count):
    """Tables [S, 7] of which some begin alike, to different depths, and queries on them: decoded ones, chunks, and
    lengths inside pages that others share; in the order of the tables. Returns tables, rows, lengths.
    """
    free = rng.permutation(page_count)
    tables = [free[:7]]
    while len(free) >= 14 and len(tables) < 9:
        free, parent = free[7:], tables[rng.integers(len(tables))]
        depth = rng.integers(0, 8)
        tables.append(np.concatenate([parent[:depth], free[: 7 - depth]]))
    tables = np.stack(sorted(tables, key=list))
    rows, lengths = [], []
    for row in range(len(tables)):
        chunk = int(rng.choice([1, 1, 2, 5, 40]))
        end = int(rng.integers(chunk, 7 * PAGE + 1))
        rows += [row] * chunk
        lengths += range(end - chunk + 1, end + 1)
    return tables, np.asarray(rows), np.asarray(lengths)


@pytest.mark.parametrize(
    ("heads", "groups", "width", "value"), [(9, 3, 64, 64), (4, 4, 16, 16), (16, 1, 72, 64), (150, 1, 24, 16)]
)
def test_what_queries_read_together_has_the_bits_of_each_alone(heads, groups, width, value):
    """Also where the order is not that of the tables, so that the neighbours are others; the last case has more heads
    than go together.
    """
    rng = np.random.default_rng(heads)
    together = 0
    for _ in range(4):
        tables, rows, lengths = families(rng, 64)
        together += int((tables[1:, 0] == tables[:-1, 0]).sum())
        queries = rng.normal(size=(len(rows), heads, width)).astype(np.float32)
        keys = rng.normal(size=(64, groups, width, PAGE)).astype(np.float32)
        values = rng.normal(size=(64, PAGE, groups, value_width(value))).astype(np.float32)
        alone = np.full((len(rows), heads, value), np.nan, np.float32)
        for n in range(len(rows)):
            one = np.asarray([n])
            paged_attention(queries, keys, values, tables, one, rows[one], lengths[one], width**-0.5, alone)
        assert np.isfinite(alone).all()
        for order in (np.arange(len(rows)), rng.permutation(len(rows))):
            out = np.full_like(alone, np.nan)
            paged_attention(queries, keys, values, tables, order, rows[order], lengths[order], width**-0.5, out)
            assert np.array_equal(out, alone)
    assert together > 4


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 32), (6, 1, 8), (8, 1, 36), (3, 3, 80)])
def test_packed_segments_and_their_gradients_are_torchs(heads, groups, width):
    torch.manual_seed(0)
    lengths = [1, 37, 16, 150]
    q, k, v = (torch.randn(sum(lengths), n, width, requires_grad=True) for n in (heads, groups, groups))
    weights = torch.randn(sum(lengths), heads, width)

    def theirs():
        outputs = []
        for each in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
            rows = (x.transpose(0, 1)[None] for x in each)
            out = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
            outputs.append(out[0].transpose(0, 1))
        return torch.cat(outputs)

    results = packed_attention(q, k, v, lengths, width**-0.5), theirs()
    torch.testing.assert_close(*results, atol=2e-6, rtol=1e-5)
    gradients = [torch.autograd.grad((result * weights).sum(), (q, k, v)) for result in results]
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-4)


def test_several_threads_give_the_same_gradients():
    """A segment alone is shared by its groups."""
    lengths = [300]
    q, k, v = (torch.randn(300, heads, 16, requires_grad=True) for heads in (6, 3, 3))
    weights, before = torch.randn(300, 6, 16), torch.get_num_threads()

    def gradients(threads):
        torch.set_num_threads(threads)
        return torch.autograd.grad((packed_attention(q, k, v, lengths, 0.25) * weights).sum(), (q, k, v))

    try:
        for one, other in zip(gradients(1), gradients(3), strict=True):
            assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)

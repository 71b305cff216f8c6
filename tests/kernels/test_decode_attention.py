"""The paged attention kernel against plain torch."""

import numpy as np
import pytest
import torch

from etude.kernels.decode_attention import PAGE, decode_attention


@pytest.mark.parametrize(("heads", "groups", "width"), [(4, 2, 32), (4, 4, 16), (6, 1, 8)])
def test_equals_softmax_attention_and_does_not_depend_on_the_batch(heads, groups, width):
    rng = np.random.default_rng(0)
    batch, pages = 9, 60
    queries = rng.normal(size=(batch, heads, width)).astype(np.float32)
    keys, values = rng.normal(size=(2, pages, PAGE, groups, width)).astype(np.float32)
    lengths = rng.integers(1, 6 * PAGE, batch)
    tables = np.stack([rng.permutation(pages)[:6] for _ in range(batch)])
    out = np.empty_like(queries)
    decode_attention(queries, keys, values, tables, lengths, width**-0.5, out)
    for b in range(batch):
        k, v = (torch.from_numpy(x[tables[b]]).flatten(0, 1)[: lengths[b]].transpose(0, 1) for x in (keys, values))
        q = torch.from_numpy(queries[b]).view(groups, heads // groups, width)
        expected = torch.softmax(q @ k.transpose(1, 2) / width**0.5, -1) @ v
        np.testing.assert_allclose(out[b], expected.reshape(heads, width), atol=2e-6)
        alone = np.empty_like(queries[:1])
        decode_attention(queries[b : b + 1], keys, values, tables[b : b + 1], lengths[b : b + 1], width**-0.5, alone)
        assert (alone[0] == out[b]).all()

"""Changes found by the Triton kernels, in the interpreter: the payloads are codec R's own, byte for byte."""

import numpy as np
import pytest
import torch

from etude.errors import ConfigError
from etude.weights import rice

triton_deltas = pytest.importorskip("etude.kernels.triton_deltas", reason="needs Triton: the dev extra")


def bf16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("elements", [1, 4095, 4096, 13_000])
def test_payloads_are_those_of_the_cpu(share, elements):
    """All patterns: NaN payloads, infinities, both zeros, subnormals; steps of one and of many places."""
    rng = np.random.default_rng(elements)
    parent = rng.integers(0, 1 << 16, elements, np.uint16)
    moved = np.where(rng.random(elements) < 0.8, parent ^ 1, rng.integers(0, 1 << 16, elements)).astype(np.uint16)
    new = np.where(rng.random(elements) < share, moved, parent).astype(np.uint16)
    found = triton_deltas.find_changes(bf16(new), bf16(parent))
    changes, payload = rice.encode(new, parent, 1 << 30)
    assert len(found.steps) == changes == np.count_nonzero(new != parent)
    assert rice.pack(found.gaps.numpy().view(np.uint32), found.steps.numpy(), elements, 1 << 30) == payload
    chunk = parent.copy()
    rice.apply(memoryview(payload), chunk)
    np.testing.assert_array_equal(chunk, new)


def test_other_tensors_are_refused():
    a = torch.zeros(4, 6, dtype=torch.bfloat16)
    for new, parent in ((a.float(), a.float()), (a.T, a.T), (a, a.flatten())):
        with pytest.raises(ConfigError, match="deltas"):
            triton_deltas.find_changes(new, parent)
    assert len(triton_deltas.find_changes(a[:0], a[:0]).gaps) == 0

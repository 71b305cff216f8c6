"""What `scale.py` says of memory: of processes that have done nothing else, no less than arithmetic has it."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import mesh_memory

from etude.models.size import parameters_of
from etude.weights.background import BackgroundPublisher
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher

LAYERS = 3
"""The least above `models.heap.TINY` parameters, below which freed memory is kept."""
pytestmark = pytest.mark.timeout(3600)


@pytest.mark.proof(40)
def test_what_ranks_hold_is_measured_in_fresh_ones_and_is_no_less_than_arithmetic():
    """The benchmark itself refuses a figure below; here is what it makes of them."""
    found = mesh_memory.held(LAYERS)
    version = 2 * parameters_of(mesh_memory.shape(LAYERS)) / 4 / mesh_memory.MIB
    assert 0.25 < found["rss_share_4"] < 0.5 and found["rss_share_4"] < found["rss_peak_share_4"]
    assert 2.9 * version < found["publish_arrays_mb"] < 4 * version, "three sets (results.md), dealt out by size"
    assert 0 < found["publish_extra_mb"] < 4 * version


def test_each_array_of_a_publisher_counts_once(tmp_path):
    """The last version is also where two merged deltas start."""
    publishing = BackgroundPublisher(Publisher(open_store(tmp_path)))
    for version in range(2):
        publishing.put(mesh_memory.Version(version), lambda into, at=version: {"a": np.full(1000, at, np.uint16)})
        publishing.published(mesh_memory.Version(version))
        assert mesh_memory.kept_bytes(publishing) == 2000 * (1 + version)
    publishing.close()

"""Large arrays of a model that is not tiny are given back at once."""

import subprocess
import sys

LOOK = """
import sys
import numpy as np, psutil, torch
from etude.models import heap

model = torch.nn.Linear(int(sys.argv[1]), 8192, bias=False)
done = heap.give_back_large_arrays(model)
if len(sys.argv) > 2:
    done = heap.keep_large_arrays()
one = np.ones(30 << 20, np.uint8)
del one  # glibc's threshold would now be 30 MiB
kept, freed, before = [], [], psutil.Process().memory_info().rss
for number in range(64):
    (kept if number % 2 else freed).append(np.ones(8 << 20, np.uint8))
full = psutil.Process().memory_info().rss
freed.clear()
print(int(done), (psutil.Process().memory_info().rss - before) / (full - before))
"""


def left(columns: int, *kept: str) -> tuple[bool, float]:
    """Whether it was done for a model of so many columns, and the share of memory that a process still has when every
    other array of many is gone."""
    ran = subprocess.run([sys.executable, "-c", LOOK, str(columns), *kept], capture_output=True, text=True, check=True)
    done, share = ran.stdout.split()
    return done == "1", float(share)


def test_every_other_array_is_given_back_where_a_model_is_not_tiny() -> None:
    done, share = left(4096)
    assert done and share < 0.6
    done, share = left(16)
    assert not done and share > 0.9, "a heap with holes in it keeps them"


def test_a_training_that_is_alone_keeps_them_after_all() -> None:
    done, share = left(4096, "kept")
    assert done and share > 0.9

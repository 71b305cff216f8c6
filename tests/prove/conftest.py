"""Where helpers of these tests stand: the scripted endpoint, and the small run."""

import sys
from pathlib import Path

for folder in ("harness", "engine", "e2e", "studio", "trainer", "../benchmarks"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

"""Where helpers of these tests stand: the scripted endpoint, and weights to publish."""

import sys
from pathlib import Path

for folder in ("harness", "weights"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

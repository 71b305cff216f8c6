"""Where helpers of these tests stand: the scripted endpoint, weights to publish, and the worlds of pages."""

import sys
from pathlib import Path

for folder in ("harness", "models", "weights", "product", "rewards", "environments/server", "archive"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

"""Where helpers of these tests stand: the scripted endpoint, and the collector of spans."""

import sys
from pathlib import Path

for folder in ("harness", "environments/server"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

"""An environment server in a process of its own that is killed and started again, as a run's recipe reaches it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "environments"))
from env_serving import Served


class Sandboxes(Served):
    """One port and one state directory, through however many lives."""

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        self.stop()

    def restart(self):
        """What was in its sandboxes is lost; the next life sweeps them."""
        self.kill()
        self.start()

    def recipe(self):
        return (f'environment={{kind = "remote", url = "{self.url}", token_file = "{self.config.token_path}"}}',)

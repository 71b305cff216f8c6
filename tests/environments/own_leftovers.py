"""What one process's sandboxes have left: other runs on this machine, alive or killed, are not looked at."""

import os
import re

from etude.environments.leftovers import leftovers


def left(config=None, pids=()):
    """The lines of `leftovers` that are of this process, or of `pids`, as instances are named."""
    own = re.compile(rf"\b({'|'.join(map(str, pids or (os.getpid(),)))})-\d+-[0-9a-f]{{8}}-")
    return [line for line in leftovers(config) if own.search(line)]

"""Where Etude keeps what must outlive a process and is no part of any project.

Owns `default_home`: what each room keeps lies below it, in a directory of the room's own; and `default_cache`, for what
can be made again. Makes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """ETUDE_HOME, or the user's directory for state."""
    if given := os.environ.get("ETUDE_HOME"):
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "etude"


def default_cache() -> Path:
    """Below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "etude"

"""Where Etude keeps what must outlive a process and is no part of any project.

Owns `default_home`: what each room keeps lies below it, in a directory of the room's own; `default_cache`, for what
can be made again; and `private_caches`, which of that no command of an agent may see. Makes those alone.
"""

from __future__ import annotations

import contextlib
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


def index_directory() -> Path:
    """Where the words of the user's files lie (`search.store`)."""
    return default_cache() / "search"


def mirror_directory() -> Path:
    """Where the runs of object stores lie (`studio.mirror`)."""
    return default_cache() / "studio"


def private_caches() -> list[Path]:
    """Directories of the cache that hold what is of other projects, or what a rule denies; by their real paths."""
    return [Path(os.path.realpath(each)) for each in (index_directory(), mirror_directory())]


def make_private_caches() -> None:
    """As far as they can be: where they cannot, nothing comes to lie there either."""
    for place in private_caches():
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)

"""Where a path leads: inside the workspace or out of it, symlinks and `..` followed.

Owns `Place`. With the workspace on this machine links are followed as the kernel would; for a workspace in a sandbox
elsewhere only names can be judged, and the sandbox itself keeps writes inside. Between the look and the write a link
could be changed by somebody else: that is the OS sandbox's to prevent.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

from etude.environments.base import WORKSPACE

_SCRATCH = ("/tmp", "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd", "/dev/tty")
"""Outside the workspace, and harmless to write."""


@dataclass(frozen=True)
class Target:
    """A path as the rules see it."""

    path: str
    relative: str | None
    """From the workspace; None outside of it."""
    scratch: bool = False


@dataclass(frozen=True)
class Place:
    """The workspace. `root` is where it lies on this machine; None where it does not. Tools call it /workspace."""

    root: Path | None = None

    def targets(self, path: str, directory: str = WORKSPACE) -> list[Target]:
        """Where a path leads: by its name, and by its links. Both must be allowed: a rule may speak of either."""
        named = posixpath.normpath(posixpath.join(directory, posixpath.expanduser(path)))
        return list(dict.fromkeys((self._target(named), self._target(self._followed(path, directory)))))

    def holds(self, target: Target) -> bool:
        """Whether this machine, if the workspace is on it, has something there."""
        return self.root is not None and os.path.lexists(target.path)

    def _target(self, path: str) -> Target:
        for root in (WORKSPACE, *([str(self.root.resolve())] if self.root is not None else [])):
            if path == root or path.startswith(f"{root}/"):
                return Target(path, path[len(root) + 1 :] or ".")
        scratch = any(path == place or path.startswith(f"{place}/") for place in _SCRATCH)
        return Target(path, None, scratch)

    def _followed(self, path: str, directory: str) -> str:
        full = posixpath.join(directory, posixpath.expanduser(path))
        if self.root is None:
            return posixpath.normpath(full)
        if full == WORKSPACE or full.startswith(f"{WORKSPACE}/"):
            # not normalised first: `link/..` is the parent of what the link leads to
            full = f"{self.root.resolve()}{full[len(WORKSPACE) :]}"
        try:
            return os.path.realpath(full)
        except (OSError, ValueError):
            return "/"  # where it leads cannot be seen: not into the workspace, for all that is known

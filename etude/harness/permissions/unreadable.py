"""What in a workspace no rule lets be read, for the sandbox to leave out.

A rule on a path stops the tools and the commands that name it. `grep -r`, `cat *` and a program of one's own name
nothing: what is denied outright is better not there. Owns `unreadable`.
"""

from __future__ import annotations

import os
from pathlib import Path

from etude.errors import ConfigError
from etude.harness.permissions.rules import PermissionConfig, Rule

_MAX_FOUND = 500


def unreadable(config: PermissionConfig, root: Path) -> tuple[str, ...]:
    """The files and directories below a workspace that `deny = ["read(…)"]` speaks of, those that exist now."""
    denied = [Rule(text, "deny") for text in config.deny]
    denied = [rule for rule in denied if rule.names("read_file") and rule.pattern is not None]
    found: list[str] = []
    for directory, directories, files in os.walk(root) if denied else ():
        here = os.path.relpath(directory, root)
        for name in (*directories, *files):
            path = os.path.normpath(os.path.join(here, name))
            if any(rule.matches_path(os.path.join(root, path), path) for rule in denied):
                found.append(path)
        directories[:] = [name for name in directories if os.path.normpath(os.path.join(here, name)) not in found]
        if len(found) > _MAX_FOUND:
            raise ConfigError(f"deny: more than {_MAX_FOUND} files of {root} may not be read; deny their directories")
    return tuple(found)

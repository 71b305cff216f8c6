"""Proof that nothing is left: processes, mounts, control groups and directories of sandboxes, by looking for them.

Owns the search alone; it removes nothing (opening a backend sweeps what dead processes left). What another living
process still uses is not left over and is not listed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from etude.environments import store
from etude.environments.namespace import NamespaceConfig

_INSIDE = re.compile(rf"\b({store.INSTANCE.pattern})/")


def leftovers(config: NamespaceConfig | None = None) -> list[str]:
    """One line for each thing sandboxes of this process, or of dead ones, have left on this machine; [] when clean.

    Complete after every backend of this process is closed; before, its live sandboxes are listed too.
    """
    state_dir = (config or NamespaceConfig()).state_dir or store.default_state_dir()
    found = [(name, f"directory {state_dir / name}") for name in store.instances(state_dir)]
    groups = store.groups_by_instance(state_dir)
    found += [(name, f"cgroup {path}") for name, paths in groups.items() for path in paths]
    found += [*_processes(), *_mounts()]
    return sorted({line for name, line in found if store.owner_is_this_process(name) or not store.owner_lives(name)})


def _processes() -> list[tuple[str, str]]:
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (directory / "cgroup").read_text()
        except OSError:
            continue  # it ended, or is another user's
        match = _INSIDE.search(groups) or (_INSIDE.search(command) if "guest" in command else None)
        if match:
            found.append((match[1], f"process {directory.name}: {command[:80].strip() or '(ended, not reaped)'}"))
    return found


def _mounts() -> list[tuple[str, str]]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [(match[1], f"mount {line}") for line in lines if (match := _INSIDE.search(line))]

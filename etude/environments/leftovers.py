"""Proof that nothing is left: processes, mounts, control groups and directories of sandboxes, by looking for them.

Owns the search alone; it removes nothing (opening a backend sweeps what dead processes left). What another living
process still uses is not left over and is not listed; nor is what another user left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from pathlib import Path

from etude.environments import store
from etude.environments.namespace import NamespaceConfig

_INSIDE = re.compile(rf"\b({store.INSTANCE.pattern})/(\d+\b)?")
_Thing = tuple[str, str | None, str]
"""The instance something belongs to, the number of its sandbox where it is one sandbox's, and a line that says what."""


def leftovers(config: NamespaceConfig | None = None) -> list[str]:
    """One line for each thing sandboxes of this process, or of dead ones, have left on this machine; [] when clean.

    Complete after every backend of this process is closed; before, its live sandboxes are listed too.
    """
    found = _things(config)
    return sorted(
        {line for name, _, line in found if store.owner_is_this_process(name) or not store.owner_is_alive(name)}
    )


def leaks(ended: Container[str], config: NamespaceConfig | None = None) -> list[str]:
    """One line for each thing that is still there of sandboxes whose ids are in `ended`."""
    return sorted({line for name, box, line in _things(config) if f"{name}/{box}" in ended})


def _things(config: NamespaceConfig | None) -> Iterator[_Thing]:
    state_dir = (config or NamespaceConfig()).state_dir or store.default_state_dir()
    for name in store.instances(state_dir):
        yield name, None, f"directory {state_dir / name}"
    for name, paths in store.groups_by_instance(state_dir).items():
        for path in paths:
            yield name, None, f"cgroup {path}"
            for child in path.iterdir() if path.is_dir() else ():
                if child.name.isdigit():
                    yield name, child.name, f"cgroup {child}"
    yield from _processes()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if match := _INSIDE.search(line):
            yield match[1], match[2], f"mount {line}"


def _processes() -> Iterator[_Thing]:
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (directory / "cgroup").read_text()
            if os.geteuid() not in (0, _user(directory)):
                continue  # another's, who can see to it himself
        except OSError:
            continue  # it ended, or cannot be seen
        ours = any(word in command for word in ("guest", "qemu", "firecracker"))
        texts = (groups, command if ours else "")
        matches = [match for text in texts for match in _INSIDE.finditer(text)]
        whose = max((match[0] for match in matches), key=len, default="").rstrip("/")
        line = f"process {directory.name} of {whose}: {command[:80].strip() or '(ended, not reaped)'}"
        for match in matches:
            yield match[1], match[2], line


def _user(process: Path) -> int:
    """Whose it is. Its files are root's where nobody may look into it, so their owner does not tell."""
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))

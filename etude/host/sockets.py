"""Which ports of this machine a user's own programs listen on, as the kernel tells it.

Owns `listening`. Opens no connection.
"""

from __future__ import annotations

from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


def listening(uid: int) -> set[int]:
    """TCP ports on which only programs of that user listen; none where the kernel does not say (proc(5), net/tcp)."""
    owners: dict[int, set[int]] = {}
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # no IPv6, or no /proc
            continue
        for _, local, _, state, _, _, _, owner, *_ in map(str.split, lines):
            if state == _LISTENS:
                owners.setdefault(int(local.rpartition(":")[2], 16), set()).add(int(owner))
    return {port for port, users in owners.items() if users == {uid}}

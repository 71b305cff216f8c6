"""Writes the archive format ("newc") that a kernel unpacks as its initial file system.

Knows bytes only. Everything belongs to root; files may be run; times are zero, so that the same entries give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

_FILE, _DIRECTORY = 0o100755, 0o040755
_LAST = "TRAILER!!!"


def cpio(entries: Mapping[str, bytes | None]) -> bytes:
    """An archive of files (name -> content) and directories (name -> None), in the order given."""
    out = bytearray()
    for number, (name, content) in enumerate({**entries, _LAST: b""}.items(), 1):
        mode = _DIRECTORY if content is None else _FILE if name != _LAST else 0
        data = content or b""
        fields = (number, mode, 0, 0, 2 if content is None else 1, 0, len(data), 0, 0, 0, 0, len(name.encode()) + 1, 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        _pad(out)
        out += data
        _pad(out)
    return bytes(out)


def _pad(out: bytearray) -> None:
    out += bytes(-len(out) % 4)

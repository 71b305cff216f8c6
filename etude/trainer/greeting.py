"""How rank 0 tells the other ranks from strangers who reach its port.

Owns `hear`. All callers are heard side by side, until all ranks have called or the one deadline is over: whoever says
nothing, or little by little, keeps nobody waiting.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import Connection

KEY, NUMBER = 32, 4
"""What a rank says, in bytes: the key that it was given, and which rank it is."""
_UNHEARD = 256
"""Callers at a time that have not said it yet. Of more, the one that has been there longest is let go: a rank says it
at once."""


def hear(server: socket.socket, key: bytes, ranks: Collection[int], seconds: float) -> dict[int, Connection]:
    """The lines of these ranks, or of those that have called in this time."""
    deadline = time.monotonic() + seconds
    lines: dict[int, Connection] = {}
    said: dict[socket.socket, bytes] = {}
    server.setblocking(False)
    with selectors.DefaultSelector() as callers:
        callers.register(server, selectors.EVENT_READ)
        while len(lines) < len(ranks) and (left := deadline - time.monotonic()) > 0:
            for ready in [each.fileobj for each, _ in callers.select(left)]:
                if ready is server:
                    _let_in(server, callers, said)
                elif isinstance(ready, socket.socket) and ready in said and _has_ended(ready, said):
                    rank = _rank_of(said.pop(ready), key)
                    callers.unregister(ready)
                    if rank is not None and rank in ranks and rank not in lines:
                        ready.setblocking(True)
                        lines[rank] = Connection(ready.detach())
                    ready.close()
    for caller in said:
        caller.close()
    return lines


def _let_in(server: socket.socket, callers: selectors.BaseSelector, said: dict[socket.socket, bytes]) -> None:
    with suppress(OSError):  # who was there is gone
        caller = server.accept()[0]
        caller.setblocking(False)
        callers.register(caller, selectors.EVENT_READ)
        said[caller] = b""
    if len(said) > _UNHEARD:
        oldest = next(iter(said))
        del said[oldest]
        callers.unregister(oldest)
        oldest.close()


def _has_ended(caller: socket.socket, said: dict[socket.socket, bytes]) -> bool:
    """Take what there is of what a caller says; whether that is all."""
    try:
        part = caller.recv(KEY + NUMBER - len(said[caller]))
    except BlockingIOError:
        return False
    except OSError:
        part = b""
    said[caller] += part
    return not part or len(said[caller]) == KEY + NUMBER


def _rank_of(said: bytes, key: bytes) -> int | None:
    """None of a stranger."""
    return int.from_bytes(said[KEY:]) if secrets.compare_digest(said[:KEY], key) else None

"""How a browser comes to the server's token: by a code that is in a printed address, and works once.

Owns `Codes`. The code stands behind the # of the address, which a browser sends to nobody; the page gives it to
`POST /api/enter` and gets the token, which it keeps for its tab. A code that somebody else has used first is told of,
so that it is not taken for a slip. Nothing here is kept on the disk.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Callable

from etude.product.sessions.errors import Refused

_MOST_CODES, _MOST_USED = 16, 64


class Codes:
    """Of one server. `on_use` is called with a new code after one was used."""

    def __init__(self, on_use: Callable[[str], None] = lambda code: None) -> None:
        self._on_use = on_use
        self._waiting: deque[str] = deque(maxlen=_MOST_CODES)
        self._used: deque[str] = deque(maxlen=_MOST_USED)

    def new(self) -> str:
        """A code that nobody has used yet. The oldest of many that wait is forgotten."""
        code = secrets.token_urlsafe(24)
        self._waiting.append(code)
        return code

    def use(self, code: str) -> None:
        """Raises Refused for one that was never given, or was used before."""
        if any(_same(code, each) for each in self._used):
            raise Refused(
                "forbidden",
                "this code was used before: if it was not you, stop the server; else open the address it has printed "
                "last",
            )
        found = [each for each in self._waiting if _same(code, each)]
        if not found:
            raise Refused("forbidden", "no such code; open the address that `etude studio` has printed last")
        self._waiting.remove(found[0])
        self._used.append(found[0])
        self._on_use(self.new())


def _same(given: str, code: str) -> bool:
    """In a time that says nothing of how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), code.encode())

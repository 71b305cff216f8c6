"""The head of a Ray of several machines, as a run that has joined it watches it.

Owns `HeadWatch`. Without its head no process of Ray can be started, found or ended, so a run does not outlive it. Ray
says nothing of that for a minute, and a head that was started again says of this run's processes that they are another
cluster's, again and again. Watches in a thread of its own, for a call into Ray may hold the event loop meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from etude.rollouts.machines.table import listens, nodes_of

_GONE_S, _LOOK_S = 40.0, 5.0
"""So long may a head be out of reach: longer than a cut that one waits for, and shorter than the minute after which Ray
itself ends every process that has lost its head, without a word of what to do."""


class HeadWatch:
    """From when it is made until it is closed; `gone` is told at most once, in the thread that watches, and why."""

    def __init__(
        self, url: str, node: str, gone: Callable[[str], object], patience_s: float = _GONE_S, look_s: float = _LOOK_S
    ) -> None:
        """`node` is the id that this machine has in that Ray."""
        self._url, self._node, self._gone, self._patience_s, self._look_s = url, node, gone, patience_s, look_s
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="head", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(self._look_s):
            nodes = nodes_of(self._url) if listens(self._url) else None
            lives = {each["NodeID"]: each["Alive"] for each in nodes or ()}
            if lives.get(self._node):
                heard = time.monotonic()
            why = self._why(lives, time.monotonic() - heard)
            if why and not self._over.is_set():
                self._gone(f"the head at {self._url} is gone: {why}")
                return

    def _why(self, lives: dict[str, bool], unheard_s: float) -> str:
        """Empty while there is hope: a wire may be cut for a while."""
        if lives and self._node not in lives:
            return "another was started in its place"
        if unheard_s <= self._patience_s:
            return ""
        return f"it {'gave this machine up' if lives else 'did not answer'} for {self._patience_s:.0f} s"

"""Keeps SIGTERM ours while Ray starts, and after.

Owns `own_sigterm`. Ray sets a handler of its own that kills its processes under whoever still waits for them, and then
one in C++ that ends the process with a dump of its stack. Both come in `ray.init`, and nothing turns them off. So the
signal waits until `ray.init` has returned, and then finds the handler that was there before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Generator

from ray._private import utils

_TERM = {signal.SIGTERM}


@contextlib.contextmanager
def own_sigterm() -> Generator[None]:
    """To be had around `ray.init`, in the main thread."""
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
    _hook_children()
    theirs = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda _: None  # ty: ignore[invalid-assignment]  # other threads may get the signal
    try:
        yield
    finally:
        utils.set_sigterm_handler = theirs
        signal.signal(signal.SIGTERM, handler)
        signal.siginterrupt(signal.SIGTERM, False)  # as asyncio has it
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache  # once for the process: a hook cannot be taken back
def _hook_children() -> None:
    os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    """What is blocked is inherited, and SIGTERM is what Ray ends its processes by."""
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM):
        os.setpgid(0, 0)

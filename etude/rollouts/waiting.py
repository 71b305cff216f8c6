"""Waits for what other processes answer: each has a deadline that names what it waits for.

Owns how an answer over Ray becomes ours: errors of our own cross unchanged, and the death of the process that was asked
is told apart from everything else (`DIED`). Starts and stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ray.exceptions import RayActorError, RayTaskError

from etude.errors import DeadlineExceeded, EtudeError

T = TypeVar("T")
DIED = RayActorError
"""What asking a process that died, or cannot be reached any more, raises."""
STEP_S, STOP_S = 600.0, 60.0


async def within(waiting: Awaitable[T], seconds: float, what: str) -> T:
    """Await with a deadline that names what it waits for. Our own errors cross processes unchanged.

    Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with the result.
    """
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        raise DeadlineExceeded(what, seconds) from None
    except RayTaskError as error:
        if isinstance(error.cause, EtudeError | OSError):
            raise error.cause from None
        raise

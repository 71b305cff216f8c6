"""Calls from one process of a cluster to another: awaited, cancelled, and turned into our own errors.

Owns what a caller is told when Ray cannot carry a call out: a process that is gone is `Unreachable`, a SandboxError
with the server's word "lost", so that whoever asks again knows that it may. Errors of our own cross unchanged. A call
whose caller is cancelled is cancelled where it runs, and has ended when the caller goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from etude.environments.wire import ServerError
from etude.errors import DeadlineExceeded, EtudeError, SandboxError

NAMESPACE = "etude"
"""Of the names of actors in Ray; explicit, because every driver has one of its own."""
_LOOK_S = 30.0
_PING_S = 30.0
_CANCEL_S = 30.0


class Unreachable(ServerError):
    """The process that was asked is gone, or will not be back in time; what it was asked may or may not be done."""


def actor(**options: Any) -> Callable[[type], Any]:
    """`ray.remote`, said to give Any: what Ray adds to a class is not in any type."""
    return ray.remote(**options)


def scheduler_name(cluster: str) -> str:
    return f"{cluster}/scheduler"


def agent_name(cluster: str, node: str) -> str:
    return f"{cluster}/agent/{node}"


async def call_within(call: Awaitable[Any], seconds: float, what: str) -> Any:
    """The answer, within a deadline; `what` is in every error. A call that is late is cancelled."""
    asked = asyncio.ensure_future(_value(call, what))
    try:
        done, _ = await asyncio.wait({asked}, timeout=seconds)
    except asyncio.CancelledError:
        await _cancel(call, asked)
        raise
    if not done:
        await _cancel(call, asked, wait_s=0)
        raise DeadlineExceeded(what, seconds)
    return asked.result()


async def fetch_within(stored: Awaitable[Any], seconds: float, what: str) -> Any:
    """What another process has put into Ray's object store."""
    try:
        async with asyncio.timeout(seconds):
            return await _value(stored, what)
    except TimeoutError:
        raise DeadlineExceeded(what, seconds) from None


async def await_while_alive(call: Awaitable[Any], ping: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The answer, however long it takes, for as long as the process that was asked answers a `ping`: it keeps the
    deadlines of what it was asked itself, and they stand still while a sandbox is paused."""
    asked = asyncio.ensure_future(_value(call, what))
    try:
        while not (await asyncio.wait({asked}, timeout=_LOOK_S))[0]:
            await call_within(ping(), _PING_S, f"the machine that was asked ({what}) to answer")
    except BaseException:
        await _cancel(call, asked)
        raise
    return asked.result()


async def _value(call: Awaitable[Any], what: str) -> Any:
    try:
        return await call
    except RayTaskError as error:
        if isinstance(error.cause, EtudeError | OSError):
            raise error.cause from None
        raise SandboxError(f"{what}: a bug of the other process: {error}") from error
    except RayError as error:
        lines = str(error).strip().splitlines() or [""]
        # where its __init__ failed, the last line of its traceback says why
        said = f"{type(error).__name__}: {lines[-1] if getattr(error, 'actor_init_failed', False) else lines[0]}"
        raise Unreachable("lost", f"{what}: the process that was asked is gone ({said})") from None


async def _cancel(call: Any, asked: asyncio.Future[Any], wait_s: float = _CANCEL_S) -> None:
    """Cancel where it runs, and wait until it has ended there."""
    ray.cancel(call)
    asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else will ask for it
    await asyncio.wait({asked}, timeout=wait_s)

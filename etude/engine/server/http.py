"""Sends answers, complete or as a stream, and stops the work when the client has gone.

Owns the form of server-sent events, errors in the middle of a stream, and noticing that a client has gone. Whatever a
request holds is let go when its answer is over, however that came about.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from etude.engine.server.errors import error_object
from etude.engine.server.flight import Choice, Flight
from etude.errors import EtudeError
from etude.serving import sse
from etude.serving.http import respond
from etude.serving.wire import Answer, dump

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def reply(value: object) -> Response:
    """An answer in JSON."""
    return respond(Answer(200, dump(value)))


def event(value: object, kind: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if kind is None else b"event: %s\n" % kind.encode()
    return b"%sdata: %s\n\n" % (head, dump(value))


class EventStream(sse.EventStream):
    """Server-sent events, and what ends them early as the last of them."""

    def __init__(self, events: AsyncGenerator[bytes], held: ExitStack) -> None:
        super().__init__(_with_errors(events), held)


async def _with_errors(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The status is out, so an error is an event; clients of OpenAI's raise it."""
    try:
        async for each in events:
            yield each
    except EtudeError as error:
        yield event({"error": error_object(error)})
    except Exception as error:
        structlog.get_logger("engine").exception("bug")
        yield event({"error": error_object(error)})
    finally:
        await events.aclose()


async def told(
    request: Request,
    admitted: AbstractContextManager[Flight],
    stream: bool,
    events: Callable[[Flight], AsyncGenerator[bytes]],
    whole: Callable[[list[Choice]], object],
) -> Response:
    """An answer as it comes, or once it is complete. What was `admitted` is let go when the answer is over."""
    held = ExitStack()
    flight = held.enter_context(admitted)
    if stream:
        return EventStream(events(flight), held)
    with held:
        return reply(whole(await unless_gone(request, flight.finished())))


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A client that goes away cancels it: ClientDisconnect. The body must have been read."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait({task, gone})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

"""The output of commands as it comes: of one that is run as a stream, and of those in the background.

Owns the form of the streams (server-sent events `output`, base64; `end`, with the result; `error`). A stream is a view:
the command goes on when nobody watches, and who comes back sees the output again, from where they say they are.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Any

from etude.environments.base import Process
from etude.environments.hosted import Hosted
from etude.environments.lives import LiveSandbox
from etude.environments.wire import answer_of
from etude.errors import EtudeError
from etude.serving.wire import Answer, dump

_PIECE = 48 << 10
_GRACE_S = 1.0


class Streams:
    """Of one node's commands."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        self._begun: dict[str, asyncio.Future[Process]] = {}
        """Of commands under way that were asked for as a stream, by key."""

    async def of(self, name: str, process: int, skip: int) -> AsyncGenerator[bytes]:
        """What a background command prints, from byte `skip` on. Raises ProcessLookupError."""
        live = self._hosted.node.find(name)
        return self._told(live, await self._hosted.process(live, process), skip)

    def run(self, key: str, digest: str, name: str, command: dict[str, Any]) -> AsyncGenerator[bytes]:
        """A command under a key; asked for again, it is told from the beginning again."""
        begun = self._begun.setdefault(key, asyncio.get_running_loop().create_future())

        def tell(process: Process) -> None:
            if not begun.done():
                begun.set_result(process)

        async def whole() -> Answer:
            try:
                requests, run = self._hosted.node.requests, self._hosted.call
                return await requests.run_once(key, digest, lambda: run(name, "exec", started=tell, **command))
            except EtudeError as error:
                return answer_of(error)
            finally:
                self._begun.pop(key, None)

        return _followed(begun, asyncio.ensure_future(whole()))

    async def _told(self, live: LiveSandbox, process: Process, skip: int) -> AsyncGenerator[bytes]:
        try:
            async with self._hosted.node.use(live.id, awake=False):
                async for event in _output(process, skip):
                    yield event
                yield _event("end", dump(await process.wait(_GRACE_S)))
        except (EtudeError, OSError) as error:
            yield _event("error", answer_of(error).body)


async def _followed(started: asyncio.Future[Process], answer: asyncio.Future[Answer]) -> AsyncGenerator[bytes]:
    await asyncio.wait({started, answer}, return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        try:
            async for event in _output(started.result()):
                yield event
        except EtudeError:
            pass  # what became of it is in the answer
    said = await asyncio.shield(answer)
    yield _event("end" if said.status == 200 else "error", said.body)


async def _output(process: Process, skip: int = 0) -> AsyncGenerator[bytes]:
    async for piece in process.output():
        for at in range(skip, len(piece), _PIECE):
            yield _event("output", base64.b64encode(piece[at : at + _PIECE]))
        skip = max(skip - len(piece), 0)


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

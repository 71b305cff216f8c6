"""What a machine's agent says to its scheduler: numbered, in order, and said again until it is heard.

Owns the messages not yet heard and the rule of what a broken connection means. A scheduler that could not be reached,
or that answers under another epoch than before, may have lost its memory: it is greeted first, with a Hello that lists
what is there now. The greeting says all that heartbeats and words of successful starts said before it; only what it
cannot say, failed starts and ends, is said after it again. Never decides what a message means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import structlog

from etude.environments.scheduling.messages import Ended, Heartbeat, Hello, Placed
from etude.errors import DeadlineExceeded, EtudeError

Message: TypeAlias = Hello | Heartbeat | Placed | Ended
Tell: TypeAlias = Callable[[Sequence[Message]], Awaitable[str]]
"""Delivers messages and returns the epoch of who heard them; raises EtudeError where nobody did."""

_AGAIN_S = 0.2


class Reporter:
    """Of one agent. `greeting(seq)` makes the Hello of this moment."""

    def __init__(self, tell: Tell, greeting: Callable[[int], Hello]) -> None:
        self._tell, self._greeting = tell, greeting
        self._out: list[Message] = []
        self._seq = 0
        self._greet = True
        self._epoch: str | None = None
        self._news = asyncio.Event()
        self._heard: list[asyncio.Future[None]] = []
        self._work: asyncio.Task[None] | None = None
        self.unheard = 0
        """Deliveries that failed."""
        self._log = structlog.get_logger("environments")

    def start(self) -> asyncio.Task[None]:
        """Begin to deliver, with a greeting."""
        self._news.set()
        self._work = asyncio.get_running_loop().create_task(self._deliver())
        return self._work

    def send(self, make: Callable[[int], Message]) -> None:
        """Put a message in line; `make` is given its number."""
        self._seq += 1
        self._out.append(make(self._seq))
        self._news.set()

    def send_hello(self) -> None:
        """The scheduler does not know us, or has asked."""
        self._greet = True
        self._news.set()

    async def acknowledged(self, timeout_s: float) -> None:
        """Wait until all that was said before has been heard. Raises DeadlineExceeded."""
        told = asyncio.get_running_loop().create_future()
        self._heard.append(told)
        self._news.set()
        try:
            async with asyncio.timeout(timeout_s):
                await told
        except TimeoutError:
            raise DeadlineExceeded("the scheduler to hear what this node holds", timeout_s) from None

    async def stop(self) -> None:
        """Say nothing more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})

    # ----------------------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._out = self._out, []
            heard, self._heard = self._heard, []
            greets, self._greet = self._greet, False
            if greets:
                self._seq += 1
                batch = [self._greeting(self._seq), *filter(_not_in_a_greeting, batch)]
            try:
                epoch = await self._tell(batch)
            except EtudeError as error:
                self._unheard(batch, heard, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if epoch != self._epoch and not greets:
                self.send_hello()  # it began anew between two messages
                self._heard = heard + self._heard
                continue
            self._epoch = epoch
            for told in heard:
                if not told.done():
                    told.set_result(None)

    def _unheard(self, batch: list[Message], heard: list[asyncio.Future[None]], error: EtudeError) -> None:
        self._log.info("unheard", messages=len(batch), why=str(error))
        self.unheard += 1
        self._out = [*filter(_not_in_a_greeting, batch), *self._out]
        self._heard = heard + self._heard
        self.send_hello()


def _not_in_a_greeting(message: Message) -> bool:
    return isinstance(message, Ended) or (isinstance(message, Placed) and message.failed is not None)

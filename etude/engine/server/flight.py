"""The choices of one request while they are sampled.

Owns the way from the engine's thread to the event loop: each token's text, its stop strings, and the end of each
choice, in the order they happened. Whoever stops listening ends the sampling. A flight can be aborted from outside; its
choices then end with what they have. Talks to: the engine, and `text`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from etude.engine.running import Constraint, SampledToken
from etude.engine.server.text import TextStream
from etude.engine.torch_engine import TorchEngine
from etude.errors import DeadlineExceeded
from etude.harness.sampler import Completion, SampleRequest

Finish = Literal["stop", "length", "abort"]


@dataclass(eq=False)
class Choice:
    """One continuation, and what there is of it so far."""

    request: SampleRequest
    stream: TextStream
    ends: Callable[[str], bool] | None = None
    """Told the text as it comes; True ends the choice there, as a stop string would."""
    constraint: Constraint | None = None
    """What it may say."""
    tokens: list[SampledToken] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: Finish | None = None
    completion: Completion | None = None
    """None of a choice that was aborted."""
    as_written: str | None = None
    """The whole message word by word, where a call in it is malformed."""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended it."""
        return self.stream.stopped_by


@dataclass(frozen=True)
class Piece:
    """What came of one choice: a token with the text that has become certain, or its end."""

    index: int
    text: str
    token: SampledToken | None
    finish: Finish | None = None


class Flight:
    """Use on one event loop, and listen to it once."""

    def __init__(
        self, engine: TorchEngine, choices: list[Choice], ready: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`ready` is waited for before anything is sampled."""
        self.choices = choices
        self._engine, self._ready = engine, ready
        self._arrived: asyncio.Queue[Piece | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._aborted = False
        self._failed = False
        self.first_token_at: float | None = None

    @property
    def outcome(self) -> str:
        """How it ended; asked for when it has."""
        if self._failed:
            return "failed"
        if any(choice.finish is None for choice in self.choices):
            return "cancelled"
        return "aborted" if any(choice.finish == "abort" for choice in self.choices) else "ok"

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Sample, and give what comes. Raises what the engine raises. Closing it drops what is not yet sampled."""
        self._tasks = [asyncio.ensure_future(self._sample(index)) for index in range(len(self.choices))]
        try:
            open_choices = len(self.choices)
            while open_choices:
                piece = await self._arrived.get()
                if isinstance(piece, Exception):
                    self._failed = True
                    raise piece
                open_choices -= piece.finish is not None
                self._keep(piece)
                yield piece
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def finished(self) -> list[Choice]:
        """Wait until all choices have ended. Where a deadline passed, those that had begun end with what they have."""
        try:
            async for _ in self.pieces():
                pass
        except DeadlineExceeded:
            if not any(choice.tokens for choice in self.choices):
                raise
            for choice in self.choices:
                choice.finish = choice.finish or "abort"
        return self.choices

    def abort(self) -> None:
        """End every choice with what it has."""
        self._aborted = True
        for task in self._tasks:
            task.cancel()

    def _keep(self, piece: Piece) -> None:
        choice = self.choices[piece.index]
        if piece.token is not None:
            choice.tokens.append(piece.token)
            self.first_token_at = self.first_token_at or time.monotonic()
        if piece.text:
            choice.texts.append(piece.text)
        if piece.finish is not None:
            choice.finish = piece.finish

    async def _sample(self, index: int) -> None:
        choice = self.choices[index]
        finish: Finish = "abort"
        try:
            with suppress(asyncio.CancelledError):  # only `abort` and `pieces` cancel; the latter reads no more
                if self._ready is not None:
                    await self._ready()
                if not self._aborted:
                    told = self._engine.sample(choice.request, self._listener(index), choice.constraint)
                    choice.completion = await told
                    finish = choice.completion.finish
        except Exception as error:
            self._arrived.put_nowait(error)
            return
        self._arrived.put_nowait(Piece(index, choice.stream.finish(), None, finish))

    def _listener(self, index: int) -> Callable[[SampledToken], bool]:
        choice = self.choices[index]

        def listen(sampled: SampledToken) -> bool:
            """On the engine's thread."""
            text = choice.stream.feed(sampled.token)
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, Piece(index, text, sampled))
            return choice.stream.stopped_by is not None or bool(choice.ends and text and choice.ends(text))

        return listen

"""A sampler for engines that only know batches: sessions advance in lock-step, one `generate` a wave.

Owns `Waves`, the harness's `Sampler` over a function that completes a list of prompts, and `Desk`, which calls that
function on the caller's thread while sessions run on an event loop of their own. A wave starts when every session still
playing waits for its next message; sandboxes and verifiers go on working while it is sampled. Knows nothing of the
library behind the function.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import TypeVar

from etude.errors import DeadlineExceeded
from etude.harness.sampler import Completion, SampleRequest

Generate = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and the longest message's tokens to what was sampled after each, its end token included."""

T = TypeVar("T")


class Desk:
    """Work for the thread that owns the model. Torch keeps a pool of workers for each thread that calls it; two pools
    on two cores would stand in each other's way.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="sessions", daemon=True)
        self.thread.start()
        self.work: queue.SimpleQueue[tuple[list[list[int]], int, Future[list[list[int]]]] | None] = queue.SimpleQueue()

    async def generate(self, prompts: list[list[int]], longest: int) -> list[list[int]]:
        """Called on the loop; runs where `serve` was called."""
        reply: Future[list[list[int]]] = Future()
        self.work.put((prompts, longest, reply))
        return await asyncio.wrap_future(reply)

    def serve(self, sessions: Coroutine[None, None, T], generate: Generate, deadline_s: float) -> T:
        """Run the sessions on the loop and their generation here, until they end; `deadline_s` bounds each wait."""
        done = asyncio.run_coroutine_threadsafe(sessions, self.loop)
        done.add_done_callback(lambda _: self.work.put(None))
        while (item := self._next(deadline_s)) is not None:
            prompts, longest, reply = item
            try:
                reply.set_result(generate(prompts, longest))
            except Exception as error:
                reply.set_exception(error)  # raised again by the sessions, and by `result` below
        return done.result()

    def _next(self, deadline_s: float) -> tuple[list[list[int]], int, Future[list[list[int]]]] | None:
        try:
            return self.work.get(timeout=deadline_s)
        except queue.Empty:
            raise DeadlineExceeded("the sessions to ask for their next wave", deadline_s) from None

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=60)


class Waves:
    """One step's sessions. Belongs to one event loop; never two waves at once."""

    def __init__(
        self, generate: Callable[[list[list[int]], int], Awaitable[list[list[int]]]], sessions: Iterable[str]
    ) -> None:
        self.generate = generate
        self.playing = set(sessions)
        self.waiting: dict[str, tuple[SampleRequest, asyncio.Future[Completion]]] = {}
        self.waves: set[asyncio.Task[None]] = set()

    async def sample(self, request: SampleRequest) -> Completion:
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.waiting[request.session_id] = request, future
        self._start_when_complete()
        return await future

    def ended(self, session_id: str) -> None:
        """No more requests will come from this session."""
        self.playing.discard(session_id)
        self._start_when_complete()

    def _start_when_complete(self) -> None:
        if self.waiting and self.playing <= self.waiting.keys():
            wave, self.waiting = list(self.waiting.values()), {}
            task = asyncio.create_task(self._run(wave))
            self.waves.add(task)
            task.add_done_callback(self.waves.discard)

    async def _run(self, wave: list[tuple[SampleRequest, asyncio.Future[Completion]]]) -> None:
        requests = [request for request, _ in wave]
        prompts = [list(request.prompt_ids) for request in requests]
        longest = max(request.max_tokens for request in requests)
        try:
            sampled = await self.generate(prompts, longest)
        except Exception as error:
            for _, future in wave:
                if not future.done():
                    future.set_exception(error)  # the sessions raise it: a library's fault ends the run
            return
        for (request, future), ids in zip(wave, sampled, strict=True):
            if not future.done():  # a session may have met its wall limit meanwhile
                future.set_result(_completion(request, ids))


def _completion(request: SampleRequest, ids: list[int]) -> Completion:
    """Cut at the session's own limit, which may be lower than its wave's."""
    kept = tuple(ids[: request.max_tokens])
    ended = bool(kept) and kept[-1] in request.stop_ids
    zeros = (0,) * len(kept)
    return Completion(kept, tuple(map(float, zeros)), zeros, "stop" if ended else "length")

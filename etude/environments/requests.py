"""A request is carried out once, however often it comes: joined while it is under way, answered from the journal after.

Owns the requests under way. Their work goes on when the connection that brought it is lost; only `cancel` stops it.
Talks to the journal; knows nothing of HTTP or of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from etude.environments.journal import Journal
from etude.environments.wire import UNDER_WAY, ServerError, answer_of
from etude.errors import EtudeError
from etude.serving.wire import Answer, dump

_STILL = Answer(UNDER_WAY, dump({"under_way": True}))
_NOT_BEGUN = ("busy", "draining")
"""Refusals after which nothing was done: the same key may be used again."""

_ANYTHING = ""
"""The digest of a key that was cancelled before anybody said what it asks for."""


class Requests:
    """The requests of one server, by key."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._under_way: dict[str, tuple[str, asyncio.Task[Answer]]] = {}
        self._unwritten: set[str] = set()
        """Keys whose answers the journal could not take: they stay with their tasks while this server lives."""
        self._stopping = False
        self._log = structlog.get_logger("environments")

    async def run_once(
        self,
        key: str,
        digest: str,
        work: Callable[[], Awaitable[object]],
        wait_s: float | None = None,
        unwritten: bool = False,
    ) -> Answer:
        """The answer to request `key`: of `work`, begun now, before, or in an earlier life of the server.

        `digest` says what is asked for; the same key for something else is refused. After `wait_s` the answer is that
        it is still under way. Errors of the work are answers like any other. What the journal cannot take is refused;
        with `unwritten` it is done all the same: for what may as well be done twice."""
        task = self._joined(key, digest)
        if isinstance(task, Answer):
            return task
        if task is None:
            if self._stopping:
                raise ServerError("draining", "this server is stopping; ask another, or try again", retry_after_s=5)
            try:
                self._journal.begin(key, digest)
            except ServerError:
                if not unwritten:
                    raise
            task = asyncio.get_running_loop().create_task(self._carry_out(key, work))
            self._under_way[key] = digest, task
            task.add_done_callback(lambda _: None if key in self._unwritten else self._under_way.pop(key, None))
        done, _ = await asyncio.wait({task}, timeout=wait_s)
        return task.result() if done else _STILL

    async def cancel(self, key: str) -> None:
        """Stop a request's work and wait until it has stopped. A request that comes after its cancelling is refused."""
        if key in self._under_way:
            _, task = self._under_way[key]
            task.cancel()
            await asyncio.wait({task})
        elif self._journal.find(key) is None:
            self._journal.begin(key, _ANYTHING)
            self._journal.finish(key, answer_of(ServerError("cancelled", "this request was cancelled before it came")))

    async def drain(self, timeout_s: float) -> None:
        """Let what is under way end; after `timeout_s` cut it, with an answer that says so."""
        tasks = {task for _, task in self._under_way.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        self._stopping = True
        for key in list(self._under_way):
            await self.cancel(key)

    # ----------------------------------------------------------------------------------------------------------------

    def _joined(self, key: str, digest: str) -> asyncio.Task[Answer] | Answer | None:
        if key in self._under_way:
            before, task = self._under_way[key]
        elif (known := self._journal.find(key)) is not None and known.answer is not None:
            before, task = known.digest, known.answer
        else:
            return None
        if before not in (digest, _ANYTHING):
            raise ServerError("key_reused", f"the key {key!r} already belongs to another request; use a new one")
        return task

    async def _carry_out(self, key: str, work: Callable[[], Awaitable[object]]) -> Answer:
        try:
            answer = Answer(200, dump(await work()))
        except asyncio.CancelledError:
            cut = ServerError("interrupted", "the server stopped while it was at this; try again, with a new key")
            answer = answer_of(cut if self._stopping else ServerError("cancelled", "this request was cancelled"))
        except ServerError as error:
            answer = answer_of(error)
            if error.kind in _NOT_BEGUN:
                self._journal.forget(key)
                return answer
        except (EtudeError, OSError) as error:
            answer = answer_of(error)
        except Exception as error:
            self._log.exception("bug", request=key)  # whoever waits must be told, whatever it was
            answer = answer_of(error)
        try:
            self._journal.finish(key, answer)
        except ServerError as error:
            self._log.warning("answer not written down", request=key, why=str(error))
            self._unwritten.add(key)
        return answer

"""One open session: it works on one thing at a time, and asks its listeners for permission.

Owns `Live`. What opens a session closes it, in one task from beginning to end; what it works on runs in another, so
that it can be cancelled and the session stays open. A question waits for its answer as long as its prompt may take;
one whose prompt is cancelled, or whose process is killed, is put again when the turn is gone on with.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from etude.errors import DeadlineExceeded, EtudeError
from etude.harness.permissions.gate import Answer, Question
from etude.harness.store import SessionStore
from etude.product.agent import Agent, open_agent
from etude.product.config import AgentConfig
from etude.product.sessions.channel import Channel, Json
from etude.product.sessions.errors import Refused, error_sentence
from etude.records import Event

_CLOSE_S = 60.0
"""Longest that a prompt takes to let go of its commands, and a session of its sandbox."""
_T = TypeVar("_T")
_log = structlog.get_logger("sessions")


class Live:
    """Open once `opened` has returned, until `close`. `channel` is told what goes on."""

    def __init__(
        self,
        channel: Channel,
        config: AgentConfig,
        directory: Path,
        store: SessionStore,
        session_id: str | None,
        worktree_of: Path | None = None,
    ) -> None:
        """Begins to open the session, a new one where there is no id; `worktree_of` as for `open_agent`."""
        self.channel = channel
        self.last_asked = time.monotonic()
        self._name = session_id or f"a new session in {directory}"
        self._asking: dict[str, tuple[Sequence[Question], asyncio.Future[Sequence[Answer]]]] = {}
        self._numbers = itertools.count(1)
        self._work: asyncio.Task[Any] | None = None
        self._to_its_end = False
        """Whether what it works on is not to be cancelled."""
        self._over = False
        """Whether the log says by now that what it works on has ended."""
        self._closing = asyncio.Event()
        self._agent: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        opening = open_agent(
            config, directory, store, session_id,
            on_event=self._logged, on_delta=channel.on_text, on_output=channel.printed, ask=self._ask,
            worktree_of=worktree_of,
        )  # fmt: skip
        self._holding = asyncio.create_task(self._hold(opening))

    async def _hold(self, opening: Any) -> None:
        try:
            async with opening as agent:
                self._agent.set_result(agent)
                await self._closing.wait()
        except BaseException as error:
            if self._agent.done():
                raise
            self._agent.set_exception(error)

    async def opened(self) -> Agent:
        """The session, once it is open. Raises what opening it raised."""
        return await asyncio.shield(self._agent)

    @property
    def agent(self) -> Agent:
        """Of a session that is open."""
        return self._agent.result()

    @property
    def ready(self) -> bool:
        """Whether it is open by now, and was not refused."""
        return self._agent.done() and self._agent.exception() is None

    @property
    def working(self) -> bool:
        """Whether it is at work, or being opened."""
        return self._work is not None or not self._agent.done()

    async def close(self) -> None:
        """Stop what it does, and let another process have it. Raises DeadlineExceeded."""
        self._closing.set()
        await self.cancel()
        await _ended(self._holding, f"{self._name} to let go of its sandbox")
        self._holding.result()

    # --- work ---------------------------------------------------------------------------------------------------------

    def start(self, work: Callable[[Agent], Coroutine[Any, Any, str]]) -> None:
        """Begin, and return; how it went is told. `work` returns how it ended."""
        self.require_idle()
        self.channel.set_status("working")
        self._over = self._to_its_end = False
        self._work = asyncio.create_task(self._run(work))

    async def briefly(self, work: Callable[[Agent], Coroutine[Any, Any, _T]]) -> _T:
        """What `work` returns, which needs the session at rest, and which nobody cancels."""
        self.require_idle()
        task = asyncio.ensure_future(work(self.agent))
        self._work, self._to_its_end, self._over = task, True, False
        task.add_done_callback(self._rest)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Return when a prompt whose end is in the log has let go: who has read of it may ask for more at once."""
        if self._work is not None and self._over:
            await _ended(self._work, f"{self._name} to come to rest")

    def _logged(self, event: Event) -> None:
        self._over = self._over or event.kind == "end"
        self.channel.logged(event)

    def require_idle(self) -> None:
        """Raises Refused while the session is at work."""
        self.last_asked = time.monotonic()
        if self._work is not None:
            raise Refused("working", f"session {self._name} is at work; wait for its end, or cancel it")

    async def _run(self, work: Callable[[Agent], Coroutine[Any, Any, str]]) -> None:
        ended = error = None
        try:
            ended = await work(self.agent)
        except EtudeError as failure:
            error = error_sentence(failure)
        except Exception as bug:
            _log.exception("bug", session=self._name)
            error = error_sentence(bug)
        finally:
            self._rest()
            self.channel.set_status("resting", error=error, ended=ended)

    def _rest(self, _: object = None) -> None:
        self._work, self.last_asked = None, time.monotonic()

    async def cancel(self) -> bool:
        """Stop what it does, and return when nothing of it runs any more; False where it rests."""
        if (work := self._work) is None:
            return False
        if not self._to_its_end and not self.agent.cancel():
            work.cancel()  # it has not begun
        await _ended(work, f"{self._name} to stop what it does")
        if self._work is work:
            self._rest()
            self.channel.set_status("resting", ended="cancelled")
        return True

    async def rested(self) -> None:
        """Return when it is not at work."""
        if self._work is not None:
            await asyncio.wait({self._work})

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        request = f"q{next(self._numbers)}"
        waiting: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._asking[request] = questions, waiting
        self.channel.asked(request, {"request": request, "questions": [_put(each) for each in questions]})
        try:
            return await waiting
        finally:
            del self._asking[request]
            self.channel.answered(request)

    def answer(self, request: str, answers: Sequence[tuple[bool, str, str]]) -> None:
        """Each is whether it is allowed, for how long (`once`, `session` or `project`), and words for the model."""
        if request not in self._asking:
            known = ", ".join(self._asking) or "none"
            raise Refused("not_found", f"no request {request[:40]!r} waits for an answer; those that do: {known}")
        questions, waiting = self._asking[request]
        if len(answers) != len(questions):
            raise Refused("invalid", f"answers: {request} asks {len(questions)} questions; answer each, in their order")
        if waiting.done():
            raise Refused("conflict", f"{request} is answered already")
        waiting.set_result([_answer(*each) for each in zip(questions, answers, strict=True)])


def _put(question: Question) -> Json:
    decision = question.decision
    asked = {"tool": question.tool, "arguments": dict(question.arguments)}
    return {**asked, "why": decision.explain(), "rules": list(decision.remember)}


def _answer(question: Question, said: tuple[bool, str, str]) -> Answer:
    allowed, how_long, words = said
    rules = question.decision.remember if how_long != "once" else ()
    return Answer(allowed, rules, words, lasting=how_long == "project")


async def _ended(task: asyncio.Task[Any], what: str) -> None:
    done, _ = await asyncio.wait({task}, timeout=_CLOSE_S)
    if not done:
        raise DeadlineExceeded(what, _CLOSE_S)

"""Runs what a turn calls for, with every step in the log before it counts.

Owns `TurnRunner`. A command starts only when the disk has the event that names it, so after whatever happens to the
machine the log knows what may have run: what has a result is not run again, and what was running is reported to the
model as interrupted, for it to look. A call that only reads is simply made again. How calls run beside and after each
other is the business of `harness.tools.execute`. While a call runs, and only then, the time that the limits allow
(`wall_s`) passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from etude.environments.base import Sandbox
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.state import SessionState, Turn
from etude.harness.tools import Tool, ToolConfig, ToolResult, run_calls
from etude.harness.tools.base import BASELINE, Baseline
from etude.harness.tools.execute import only_reads
from etude.records import EventKind

INTERRUPTED = (
    "error: interrupted: the session was stopped while this ran, so it may have done all, some or nothing of its work; "
    "look before you run it again"
)
NOT_RUN = "error: not run: the session was stopped before it"
Review: TypeAlias = Callable[[Sequence[ToolCall | MalformedCall]], Awaitable[None]]


class TurnRunner:
    """For the turns of one session, whose calls may run for `wall_s` in all of a prompt.

    `before_change` is awaited before a call that could change files; `beginning` gives the files as they were at the
    session's start, for tools that compare with them; `review` is shown the calls of a turn before any of them is run;
    `on_output` is told, by the call's place in the turn, what commands print meanwhile.
    """

    def __init__(
        self,
        state: SessionState,
        tools: Mapping[str, Tool],
        sandbox: Sandbox,
        config: ToolConfig,
        wall_s: float,
        before_change: Callable[[], Awaitable[None]],
        beginning: Callable[[], Baseline | None],
        review: Review | None,
        on_output: Callable[[int, bytes], None] | None,
    ) -> None:
        self._state, self._tools, self._sandbox, self._config = state, tools, sandbox, config
        self._wall_s = wall_s
        self._before_change, self._beginning = before_change, beginning
        self._review, self._on_output = review, on_output

    async def run(self, turn: Turn) -> bool:
        """Give every call of the turn its result; False where their time was over first, and they were stopped."""
        self._announce(turn)
        wall = asyncio.timeout(None)
        waiting = []
        for index, call in enumerate(turn.calls):
            if index in turn.results:
                continue
            if index in turn.started and not only_reads(call, self._tools):
                self._result(turn, index, ToolResult(INTERRUPTED, error=True))
            else:
                waiting.append(index)

        async def on_start(at: int) -> None:
            await self._start(turn, waiting[at])
            self._let_pass(wall)

        def on_result(at: int, result: ToolResult) -> None:
            self._result(turn, waiting[at], result)
            self._let_pass(wall)

        watcher = self._on_output
        on_output = None if watcher is None else lambda at, piece: watcher(waiting[at], piece)
        calls = [turn.calls[index] for index in waiting]
        if self._review is not None and calls:
            await self._review(calls)
        BASELINE.set(self._beginning())
        try:
            async with wall:
                await run_calls(calls, self._tools, self._sandbox, self._config, on_result, on_start, on_output)
        except TimeoutError:
            if not wall.expired():
                raise
            return False
        return True

    def _let_pass(self, wall: asyncio.Timeout) -> None:
        """The clock stands still while no call runs."""
        if wall.expired():
            return
        if not self._state.tools_run:
            wall.reschedule(None)
        elif wall.when() is None:
            wall.reschedule(asyncio.get_running_loop().time() + self._wall_s - self._state.tools_s)

    def leave(self, turn: Turn) -> None:
        """Give every call that has none yet a result that says so."""
        self._announce(turn)
        for index in range(len(turn.calls)):
            if index not in turn.results:
                text = INTERRUPTED if index in turn.started else NOT_RUN
                self._result(turn, index, ToolResult(text, error=True))

    def _announce(self, turn: Turn) -> None:
        for index in range(turn.announced, len(turn.calls)):
            call, said = turn.calls[index], {}
            if isinstance(call, ToolCall):
                said["arguments"] = dict(call.arguments)
            else:
                said["raw"] = call.raw
            self._commit("tool_call", turn, index, **said)

    async def _start(self, turn: Turn, index: int) -> None:
        if only_reads(turn.calls[index], self._tools):
            self._commit("tool_started", turn, index)
        else:
            await self._before_change()
            self._commit("tool_started", turn, index)
            await self._state.log.sync()

    def _result(self, turn: Turn, index: int, result: ToolResult) -> None:
        late = {"overdue": True} if result.overdue else {}
        self._commit("tool_result", turn, index, text=result.text, error=result.error, **late)

    def _commit(self, kind: EventKind, turn: Turn, index: int, **data: Any) -> None:
        self._state.commit(kind, turn=turn.number, index=index, name=turn.name(index), **data)

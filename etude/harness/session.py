"""One agent session: the loop that product, rollouts and evaluation all run, byte for byte the same.

    opening → sample → append exactly that → read the calls → run them → append the observation → sample → …

until a message without a call (`finished`), or a limit. This is the heart of Etude: a model is trained by what
happened here, and used through it afterwards. So the rules are strict:

- Token ids are the only truth. The context only ever grows at its end; what the sampler returned is kept as it is, with
  log-probability and version of each token, and is never decoded and encoded again. Text is a view, for the parser.
- Only tokens that were sampled are marked so. A message cut off by a limit is closed with an end token that is not.
- What a model does wrongly, from a misspelt parameter to a failing command, is answered and stays in the data.
  What our machinery does wrongly is raised (SandboxError, DeadlineExceeded, …): it must never look like the model's
  doing.
- A limit ends the session, not the rollout: the calls of the last message are run, so the final state can be judged.
- Nothing has happened before the log says so: every step is committed first and folded into the state next
  (`harness.state`), and a command starts only when the log that names it is on disk. A session whose log is a file
  goes on from any `kill -9`, in the middle of a turn too: what was finished is not run again, and of a command that
  was running the model is told that it was interrupted.

Owns `Session`, of any number of prompts, and `run_session`, of one. Talks to a `Dialogue` (a sampler and a chat, in
training) and a `Sandbox`, and knows the engine, tokenizer and backend behind none of them. Imports neither torch nor
Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import Field, field_validator

from etude.config import Config
from etude.environments.base import Sandbox
from etude.errors import CheckpointError, ContextOverflow
from etude.harness.dialogue import Dialogue, TokenDialogue
from etude.harness.events import EventLog, Record, decoded
from etude.harness.prompt import system_prompt
from etude.harness.sampler import Chat, Sampler
from etude.harness.schema import ToolCall
from etude.harness.state import SessionState, Stop, Turn
from etude.harness.tools import TOOLS, Tool, ToolConfig, ToolResult, run_calls
from etude.harness.tools.execute import only_reads
from etude.records import Event, EventKind, Limits, Segment

INTERRUPTED = (
    "error: interrupted: the session was stopped while this ran, so it may have done all, some or nothing of its work; "
    "look before you run it again"
)
NOT_RUN = "error: not run: the session was stopped before it"


class HarnessConfig(Config):
    """What the agent is given; part of what a trained model is, so a recipe and a release both carry it."""

    tools: tuple[str, ...] = tuple(tool.name for tool in TOOLS)
    """Which tools there are; the prompt lists them in the order of `TOOLS`, whatever the order here."""
    max_turn_tokens: int = Field(4096, ge=1)
    """Longest single message; a longer one is cut off and the model told so."""
    min_turn_tokens: int = Field(16, ge=1)
    """A session whose context has less room than this for another message has outgrown it."""
    tool: ToolConfig = ToolConfig()

    @field_validator("tools")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [tool.name for tool in TOOLS]
        if not names or len(set(names)) < len(names) or not set(names) <= set(known):
            raise ValueError(f"name each tool once, from {', '.join(known)}; got {', '.join(names) or 'none'}")
        return names

    def chosen(self) -> dict[str, Tool]:
        """The tools by name, in the prompt's order."""
        return {tool.name: tool for tool in TOOLS if tool.name in self.tools}


@dataclass(frozen=True)
class SessionResult:
    """A session that ended by itself or by a limit; one that our machinery broke raises instead.

    `usage` counts turns, calls that were well formed and that were not, turns with two well-formed calls or more,
    messages cut off by a limit, tokens sampled and observed (the opening is neither), and results that begin with
    `error:`.
    """

    session_id: str
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    stop: Stop
    usage: Mapping[str, int]


async def run_session(
    instruction: str,
    sandbox: Sandbox,
    sampler: Sampler,
    chat: Chat,
    config: HarnessConfig,
    limits: Limits,
    *,
    session_id: str,
    seed: int,
    temperature: float = 1.0,
    on_event: Callable[[Event], None] | None = None,
) -> SessionResult:
    """Play one instruction to its end. The sandbox stays the caller's, to judge and destroy.

    The same seed, sampler and observations give the same session. Raises what sampler and sandbox raise for failures of
    their own. Cancelling it is safe: nothing runs on behind.
    """
    dialogue = TokenDialogue(sampler, chat, config.chosen(), session_id=session_id, seed=seed, temperature=temperature)
    log = EventLog(on_event)
    session = Session(sandbox, dialogue, config, limits, log)
    session.begin(id=session_id, seed=seed, temperature=temperature)
    stop = await session.prompt(instruction, last=True)
    return SessionResult(session_id, tuple(session.state.sealed), log.events, stop, session.state.usage)


class Session:
    """A conversation that works in a sandbox. One prompt at a time; its log is all there is to it.

    A log with a past is taken up: `dialogue` must then be fresh, and be made as the first one was. `resume` finishes
    what was cut short; a new `prompt` leaves it at that.
    """

    def __init__(
        self, sandbox: Sandbox, dialogue: Dialogue, config: HarnessConfig, limits: Limits, log: EventLog
    ) -> None:
        self.sandbox, self.dialogue, self.config, self.limits, self.log = sandbox, dialogue, config, limits, log
        self.tools = config.chosen()
        self.state = SessionState(dialogue)
        if log.journal is not None:
            self.state.replay(decoded(log.journal))

    def begin(self, **about: Any) -> None:
        """The first event: who this is and how it samples."""
        self._commit("session", **about, tools=self.config.tools)

    async def prompt(self, text: str, *, last: bool = False) -> Stop:
        """Play until the model answers without a call, or a limit; `last` seals the context after it."""
        user = text
        if not self.state.prompts:
            system = system_prompt(self.tools.values())
            words = self.dialogue.opening(system, user)
            self._commit("prompt", words.record, system=system, user=text, tokens=words.tokens)
        else:
            words = self.dialogue.observation(self._leave_open_turn(), user)
            self._commit("prompt", words.record, user=text, tokens=words.tokens)
        return await self._work(last)

    async def resume(self) -> Stop:
        """Go on where the log ends. A prompt that had ended stays so."""
        if not self.state.prompts:
            raise CheckpointError("this session has no prompt yet; give it one")
        if self.state.stop is not None:
            return self.state.stop
        self._commit("resumed", time=datetime.now(UTC).isoformat(timespec="seconds"), tokens=self.dialogue.tokens)
        return await self._work(last=False)

    # --- one prompt -----------------------------------------------------------------------------------------------

    async def _work(self, last: bool) -> Stop:
        deadline = asyncio.timeout(self.limits.wall_s)
        try:
            async with deadline:
                stop = await self._play()
        except TimeoutError:
            if not deadline.expired():
                raise
            stop = "wall"
        if last:
            self._commit("segment_sealed", segment="turns", tokens=self.dialogue.tokens)
        self._commit("end", stop=stop, usage=dict(self.state.usage))
        await self.log.sync()
        return stop

    async def _play(self) -> Stop:
        """Turns until something ends them."""
        while True:
            if self.state.turn is None:
                if stop := self._exhausted(0):
                    return stop
                try:
                    await self._sample()
                except ContextOverflow:
                    return "context"
            turn = self.state.open_turn
            if not turn.calls and not turn.cut:
                return "finished"
            await self._run(turn)
            words = self.dialogue.observation(turn.texts())
            if stop := self._exhausted(words.tokens):
                return stop
            self._commit("observation", words.record, turn=turn.number, tokens=words.tokens)

    async def _sample(self) -> None:
        room = min(self._room(), self._tokens_left(), self.config.max_turn_tokens)
        reply = await self.dialogue.reply(room, self.state.usage["turns"])
        self._commit(
            "completion",
            reply.record,
            turn=self.state.usage["turns"] + 1,
            text=reply.text,
            tokens=reply.tokens,
            context=self.dialogue.tokens + reply.tokens,
            finish="length" if reply.cut else "stop",
            version=reply.version,
        )

    async def _run(self, turn: Turn) -> None:
        """Run the calls that have no result yet; of what was running when a process died, say so."""
        self._announce(turn)
        waiting = []
        for index, call in enumerate(turn.calls):
            if index in turn.results:
                continue
            if index in turn.started and not only_reads(call, self.tools):
                self._result(turn, index, ToolResult(INTERRUPTED, error=True))
            else:
                waiting.append(index)

        async def on_start(at: int) -> None:
            index = waiting[at]
            self._commit("tool_started", turn=turn.number, index=index, name=_name(turn, index))
            if not only_reads(turn.calls[index], self.tools):
                await self.log.sync()

        def on_result(at: int, result: ToolResult) -> None:
            self._result(turn, waiting[at], result)

        calls = [turn.calls[index] for index in waiting]
        await run_calls(calls, self.tools, self.sandbox, self.config.tool, on_result, on_start)

    def _announce(self, turn: Turn) -> None:
        for index in range(turn.announced, len(turn.calls)):
            call = turn.calls[index]
            said: dict[str, Any] = (
                {"arguments": dict(call.arguments)} if isinstance(call, ToolCall) else {"raw": call.raw}
            )
            self._commit("tool_call", turn=turn.number, index=index, name=_name(turn, index), **said)

    def _result(self, turn: Turn, index: int, result: ToolResult) -> None:
        self._commit(
            "tool_result",
            turn=turn.number,
            index=index,
            name=_name(turn, index),
            text=result.text,
            error=result.error,
        )

    def _leave_open_turn(self) -> Sequence[str]:
        """The results that the last turn still owes the model: its prompt ended before they were in the context."""
        turn = self.state.turn
        if turn is None:
            return []
        self._announce(turn)
        for index in range(len(turn.calls)):
            if index not in turn.results:
                text = INTERRUPTED if index in turn.started else NOT_RUN
                self._result(turn, index, ToolResult(text, error=True))
        return turn.texts()

    # --- what is left ---------------------------------------------------------------------------------------------

    def _commit(self, kind: EventKind, record: Record | None = None, **data: Any) -> None:
        self.state.apply(self.log.add(kind, record=record, **data), record or {})

    def _room(self) -> int:
        return self.limits.max_context_tokens - self.dialogue.tokens

    def _tokens_left(self) -> int:
        return self.limits.max_sampled_tokens - self.state.usage["sampled_tokens"]

    def _exhausted(self, observation_tokens: int) -> Stop | None:
        """The limit that leaves no room for another turn after so many more tokens, if any."""
        if self.state.usage["turns"] - self.state.turns_before >= self.limits.max_turns:
            return "turns"
        if self._tokens_left() <= 0:
            return "tokens"
        if self._room() - observation_tokens < self.config.min_turn_tokens:
            return "context"
        return None


def _name(turn: Turn, index: int) -> str:
    call = turn.calls[index]
    return call.name if isinstance(call, ToolCall) else "malformed"

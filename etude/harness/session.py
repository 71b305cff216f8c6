"""One agent session: the loop that product, rollouts and evaluation all run, byte for byte the same.

    opening ids → sample → append the exact ids → read the calls → run them → append the observation ids → sample → …

until a message without a call (`finished`), or a limit. This is the heart of Etude: a model is trained by what
happened here, and used through it afterwards. So the rules are strict:

- Token ids are the only truth. The context only ever grows at its end; what the sampler returned is kept as it is, with
  log-probability and version of each token, and is never decoded and encoded again. Text is a view, for the parser.
- Only tokens that were sampled are marked so. A message cut off by a limit is closed with an end token that is not.
- What a model does wrongly, from a misspelt parameter to a failing command, is answered and stays in the data.
  What our machinery does wrongly is raised (SandboxError, DeadlineExceeded, …): it must never look like the model's
  doing.
- A limit ends the session, not the rollout: the calls of the last message are run, so the final state can be judged.

A session is a chain of segments, each sampled in one context. Today a chain has one link, of kind `turns`.

Owns `run_session`. Talks to a `Sampler`, a `Chat` and a `Sandbox`, and knows the engine, tokenizer and backend behind
none of them. Imports neither torch nor Ray. Everything observable is in the result, and told to `on_event` as it
happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator

from etude.config import Config
from etude.environments.base import Sandbox
from etude.errors import ContextOverflow
from etude.harness.events import EventLog
from etude.harness.prompt import render_results, system_prompt
from etude.harness.protocol import calls_of, parse_message
from etude.harness.sampler import NO_ROUTES, Chat, Completion, Sampler, SampleRequest
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools import TOOLS, ToolConfig, ToolResult, run_calls
from etude.records import Event, Limits, Routes, Segment

Stop: TypeAlias = Literal["finished", "turns", "context", "tokens", "wall"]


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


_COUNTS = (
    "turns", "tool_calls", "malformed_calls", "parallel_turns", "cut_messages", "sampled_tokens", "observed_tokens",
    "error_observations",
)  # fmt: skip


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
    log = EventLog(on_event)
    return await _Session(sandbox, sampler, chat, config, limits, session_id, seed, temperature, log).run(instruction)


class _Context:
    """The growing segment: ids, and for each whether it was sampled, how probable it was, and under which version."""

    def __init__(self, opening: Sequence[int]) -> None:
        self.ids: list[int] = []
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self.routes: Routes = NO_ROUTES
        self.observe(opening)

    def observe(self, ids: Sequence[int]) -> None:
        """Append ids the model did not sample."""
        self.ids += ids
        self._sampled += [False] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._versions += [0] * len(ids)

    def sample(self, completion: Completion) -> None:
        """Append what the model sampled. Its routes cover the whole context, so the last ones are all there are."""
        self.ids += completion.token_ids
        self._sampled += [True] * len(completion.token_ids)
        self._logprobs += completion.logprobs
        self._versions += completion.versions
        self.routes = completion.routed_experts

    def seal(self) -> Segment:
        return Segment(
            token_ids=np.array(self.ids, np.int32),
            sampled=np.array(self._sampled, np.bool_),
            logprobs=np.array(self._logprobs, np.float32),
            versions=np.array(self._versions, np.int32),
            routed_experts=self.routes,
        )


@dataclass
class _Session:
    sandbox: Sandbox
    sampler: Sampler
    chat: Chat
    config: HarnessConfig
    limits: Limits
    session_id: str
    seed: int
    temperature: float
    log: EventLog

    def __post_init__(self) -> None:
        self.tools = {tool.name: tool for tool in TOOLS if tool.name in self.config.tools}
        self.usage = dict.fromkeys(_COUNTS, 0)

    async def run(self, instruction: str) -> SessionResult:
        system = system_prompt(self.tools.values())
        self.context = _Context(self.chat.opening(system, instruction))
        self.log.add(
            "session", id=self.session_id, seed=self.seed, temperature=self.temperature, tools=self.config.tools
        )
        self.log.add("prompt", system=system, user=instruction, tokens=len(self.context.ids))
        deadline = asyncio.timeout(self.limits.wall_s)
        try:
            async with deadline:
                stop = await self._play()
        except TimeoutError:
            if not deadline.expired():
                raise
            stop = "wall"
        segment = self.context.seal()
        self.log.add("segment_sealed", segment=segment.kind, tokens=len(segment.token_ids))
        self.log.add("end", stop=stop, usage=dict(self.usage))
        return SessionResult(self.session_id, (segment,), self.log.events, stop, self.usage)

    async def _play(self) -> Stop:
        """Turns until something ends the session."""
        stop = self._exhausted(0)
        while stop is None:
            try:
                completion = await self._sample()
            except ContextOverflow:
                return "context"
            cut = completion.finish == "length"
            text = self.chat.decode(completion.token_ids)
            self._record(completion, text)
            calls = calls_of(parse_message(text, self.tools, cut))
            if not calls and not cut:
                return "finished"
            observation = self._observation(await self._run(calls), completion)
            stop = self._exhausted(len(observation))
            if stop is None:
                self.context.observe(observation)
                self.usage["observed_tokens"] += len(observation)
        return stop

    async def _sample(self) -> Completion:
        request = SampleRequest(
            session_id=self.session_id,
            prompt_ids=tuple(self.context.ids),
            max_tokens=min(self._room(), self._tokens_left(), self.config.max_turn_tokens),
            stop_ids=self.chat.stop_ids,
            temperature=self.temperature,
            # a turn's own seed: an engine that counts draws from the request's start must not repeat itself
            seed=(self.seed * 1_000_003 + self.usage["turns"]) % 2**63,
        )
        return await self.sampler.sample(request)

    def _record(self, completion: Completion, text: str) -> None:
        self.context.sample(completion)
        self.usage["turns"] += 1
        self.usage["sampled_tokens"] += len(completion.token_ids)
        self.usage["cut_messages"] += completion.finish == "length"
        self.log.add(
            "completion",
            turn=self.usage["turns"],
            text=text,
            tokens=len(completion.token_ids),
            context=len(self.context.ids),
            finish=completion.finish,
            version=max(completion.versions, default=0),
        )

    async def _run(self, calls: Sequence[ToolCall | MalformedCall]) -> list[ToolResult]:
        turn, names = self.usage["turns"], []
        for index, call in enumerate(calls):
            if isinstance(call, ToolCall):
                self.usage["tool_calls"] += 1
                names.append(call.name)
                self.log.add("tool_call", turn=turn, index=index, name=call.name, arguments=dict(call.arguments))
            else:
                self.usage["malformed_calls"] += 1
                names.append("malformed")
                self.log.add("tool_call", turn=turn, index=index, name="malformed", raw=call.raw)
        self.usage["parallel_turns"] += len(names) - names.count("malformed") >= 2

        def on_result(index: int, result: ToolResult) -> None:
            self.usage["error_observations"] += result.error
            self.log.add("tool_result", turn=turn, index=index, name=names[index], text=result.text, error=result.error)

        return await run_calls(calls, self.tools, self.sandbox, self.config.tool, on_result)

    def _observation(self, results: Sequence[ToolResult], completion: Completion) -> list[int]:
        """The ids that follow this turn; a message that was cut off is closed first, and without a call told why."""
        texts = [result.text for result in results]
        if not texts:
            texts = [f"error: your message was cut off after {len(completion.token_ids)} tokens; write shorter ones"]
        ended = bool(completion.token_ids) and completion.token_ids[-1] in self.chat.stop_ids
        return [*([] if ended else [self.chat.end_id]), *self.chat.observation(render_results(texts))]

    def _room(self) -> int:
        return self.limits.max_context_tokens - len(self.context.ids)

    def _tokens_left(self) -> int:
        return self.limits.max_sampled_tokens - self.usage["sampled_tokens"]

    def _exhausted(self, observation_tokens: int) -> Stop | None:
        """The limit that leaves no room for another turn after so many more tokens, if any."""
        if self.usage["turns"] >= self.limits.max_turns:
            return "turns"
        if self._tokens_left() <= 0:
            return "tokens"
        if self._room() - observation_tokens < self.config.min_turn_tokens:
            return "context"
        return None

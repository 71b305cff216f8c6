"""The interface between a session and its model: the conversation so far, and the model's next message.

Owns the `Dialogue` seam, and `TokenDialogue`, a dialogue in token ids over a `Sampler` and a `Chat`: what training
needs, and every model of our own. A dialogue's state is computed from its records: `opening` and `observation` only
prepare text, `reply` only samples, and neither is part of the conversation until its record is given to `append_input`
or `append_reply`. So a session writes a record to its log before it counts, and the same two methods restore a dialogue
from a log. Runs no tool, writes no log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from etude.harness.events import Record
from etude.harness.prompt import explained_prompt, render_results, system_prompt
from etude.harness.protocol import calls_of, parse_message
from etude.harness.sampler import NO_ROUTES, Chat, Completion, Sampler, SampleRequest
from etude.harness.schema import MalformedCall, ToolCall, ToolSchema
from etude.records import Event, Routes, Segment


@dataclass(frozen=True)
class PreparedInput:
    """Text made ready for the context: how many tokens it will take there, and the record that puts it there."""

    tokens: int
    record: Record


@dataclass(frozen=True)
class Reply:
    """One message of the model; `cut` where it was cut off at its longest."""

    text: str
    tokens: int
    context: int
    """Length of the context with it, as exactly as is known by now."""
    cut: bool
    version: int
    record: Record
    repeated: str = ""
    """What it said over and over, where it was cut for that."""


class Dialogue(Protocol):
    """One conversation with one model: what a session needs of it, whatever it is made of."""

    @property
    def tokens(self) -> int:
        """Length of the context."""
        ...

    def system(self, persona: str) -> str:
        """The system prompt: who the agent is, and, where the model must read of them, its tools."""
        ...

    def opening(self, system: str, user: str) -> PreparedInput:
        """The start of a new context."""
        ...

    def observation(self, results: Sequence[str], user: str | None = None) -> PreparedInput:
        """What follows the model's last message: the results of its calls, words of the user's, or both."""
        ...

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        """The next message. `draw` numbers the messages of a session, so that no two are drawn alike.

        Raises ContextOverflow when it does not fit, and what a sampler raises for failures of its own."""
        ...

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        """The calls a message holds."""
        ...

    def append_input(self, words: Record) -> None: ...

    def append_reply(self, reply: Record) -> None: ...

    def seal(self, kind: Literal["turns", "summary"]) -> Segment | None:
        """End the context, to be followed by a new opening; None from a dialogue that knows no token ids."""
        ...


class RouteStore(Protocol):
    """Where a dialogue keeps routes, which are too large for a log, so that another process can take them up."""

    def keep(self, rows: Routes) -> int:
        """Add rows; returns where they are."""
        ...

    def kept(self, at: int, shape: Sequence[int], dtype: str) -> Routes:
        """Rows that are there. Raises CheckpointError where they are not."""
        ...


class TokenDialogue:
    """Implements `Dialogue`. Token ids are the only truth: what was sampled is never decoded and encoded again."""

    def __init__(
        self,
        sampler: Sampler,
        chat: Chat,
        tools: Mapping[str, ToolSchema],
        *,
        session_id: str,
        seed: int,
        temperature: float = 1.0,
        explained: bool = False,
        lenient: bool = False,
        routes: RouteStore | None = None,
    ) -> None:
        """`explained` tells what each tool is for; `lenient` takes values that are not quite of their type. Without
        `routes` those of a log that is taken up are lost."""
        self._sampler, self._chat, self._tools = sampler, chat, tools
        self._explained, self._lenient = explained, lenient
        self._session_id, self._seed, self._temperature = session_id, seed, temperature
        self._routes, self._fresh = routes, NO_ROUTES
        self._context = _Context()

    @property
    def tokens(self) -> int:
        return len(self._context.ids)

    def system(self, persona: str) -> str:
        return (explained_prompt if self._explained else system_prompt)(self._tools.values(), persona)

    def opening(self, system: str, user: str) -> PreparedInput:
        return _prepared(self._chat.opening(system, user))

    def observation(self, results: Sequence[str], user: str | None = None) -> PreparedInput:
        """A message that was cut off is closed first, by a token that is not marked as sampled."""
        text = "\n".join([*([render_results(results)] if results else []), *([user] if user is not None else [])])
        ended = bool(self._context.ids) and self._context.ids[-1] in self._chat.stop_ids
        return _prepared([*([] if ended else [self._chat.end_id]), *self._chat.observation(text)])

    async def reply(self, max_tokens: int, draw: int) -> Reply:
        request = SampleRequest(
            session_id=self._session_id,
            prompt_ids=tuple(self._context.ids),
            max_tokens=max_tokens,
            stop_ids=self._chat.stop_ids,
            temperature=self._temperature,
            # a turn's own seed: an engine that counts draws from the request's start must not repeat itself
            seed=(self._seed * 1_000_003 + draw) % 2**63,
        )
        completion = await self._sampler.sample(request)
        # they cover the whole context; what is known of a position stays, however often it is computed anew
        self._fresh = completion.routed_experts[self._context.routed :]
        return Reply(
            text=self._chat.decode(completion.token_ids),
            tokens=len(completion.token_ids),
            context=self.tokens + len(completion.token_ids),
            cut=completion.finish == "length",
            version=max(completion.versions, default=0),
            record={**_sampled(completion), **self._routed(self._fresh)},
        )

    def calls(self, reply: Record, text: str, cut: bool) -> list[ToolCall | MalformedCall]:
        return calls_of(parse_message(text, self._tools, cut, lenient=self._lenient))

    def append_input(self, words: Record) -> None:
        self._context.add(words["ids"])

    def append_reply(self, reply: Record) -> None:
        self._context.add(reply["ids"], reply["logprobs"], reply["versions"])
        fresh, self._fresh = self._fresh, NO_ROUTES
        if not len(fresh) and self._routes is not None and "routes" in reply:
            at, *shape, dtype = reply["routes"]
            fresh = self._routes.kept(at, shape, dtype)
        self._context.add_routes(fresh)

    def _routed(self, rows: Routes) -> Record:
        """Where the routes are that came with a message: [place, rows, layers, experts a token, type]."""
        if self._routes is None or not len(rows):
            return {}
        return {"routes": [self._routes.keep(rows), *rows.shape, rows.dtype.str]}

    def seal(self, kind: Literal["turns", "summary"]) -> Segment:
        segment, self._context = self._context.sealed(kind), _Context()
        return segment


def segments_of(log: Iterable[tuple[Event, Record]], routes: RouteStore) -> tuple[Segment, ...]:
    """The segments of a log of token ids that nobody went back in: bit for bit those of the session that wrote it.

    Needs neither model nor chat. Raises CheckpointError where routes are missing.
    """
    context, sealed = _Context(), []
    for event, record in log:
        if event.kind == "segment_sealed":
            sealed.append(context.sealed(event.data["segment"]))
            context = _Context()
        elif "ids" in record:
            context.add(record["ids"], record.get("logprobs"), record.get("versions"))
            if "routes" in record:
                at, *shape, dtype = record["routes"]
                context.add_routes(routes.kept(at, shape, dtype))
    return tuple(sealed)


def _prepared(ids: Sequence[int]) -> PreparedInput:
    return PreparedInput(len(ids), {"ids": ids})


def _sampled(completion: Completion) -> Record:
    return {"ids": completion.token_ids, "logprobs": completion.logprobs, "versions": completion.versions}


class _Context:
    """The growing segment: ids, and for each whether it was sampled, how probable it was, and under which version."""

    def __init__(self) -> None:
        self.ids: list[int] = []  # a list, since every request takes a copy of it
        self._sampled = array("b")
        self._logprobs = array("f")
        self._versions = array("i")
        self._routes: list[Routes] = []
        self.routed = 0
        """Positions whose routes are known."""

    def add(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, versions: Sequence[int] | None = None
    ) -> None:
        """Append ids; those with log-probabilities are what the model sampled."""
        zeros = (0,) * len(ids)
        self.ids += ids
        self._sampled.extend((logprobs is not None,) * len(ids))
        self._logprobs.extend(zeros if logprobs is None else logprobs)
        self._versions.extend(zeros if versions is None else versions)

    def add_routes(self, rows: Routes) -> None:
        """Of the positions after those whose routes are known."""
        if len(rows):
            self._routes.append(rows.copy())  # a view would hold those of the whole context
            self.routed += len(rows)

    def sealed(self, kind: Literal["turns", "summary"]) -> Segment:
        return Segment(
            token_ids=np.array(self.ids, np.int32),
            sampled=np.array(self._sampled, np.bool_),
            logprobs=np.array(self._logprobs, np.float32),
            versions=np.array(self._versions, np.int32),
            routed_experts=np.concatenate(self._routes) if self._routes else NO_ROUTES,
            kind=kind,
        )

"""One assistant message that is asked for, whichever route asks.

Owns what chat completions, responses and messages have in common: the prompt with its tools, what a message has
to be, when it ends, how it is read, and what is remembered of it. The routes own the form of their answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.server.bodies import (
    BareSchema,
    Common,
    FlatSchema,
    JsonObject,
    JsonSchema,
    NamedFlatTool,
    NamedFunction,
    PlainText,
    parse_body,
)
from etude.engine.server.calls import CallPiece, CallStream, Event, Words
from etude.engine.server.errors import bad
from etude.engine.server.flight import Choice, Flight
from etude.engine.server.grammar import ANY_OBJECT, Constrained
from etude.engine.server.http import told
from etude.engine.server.prompts import Turn, conversation_ids, remember
from etude.engine.server.service import Service
from etude.harness.schema import ToolSchema

B = TypeVar("B", bound=Common)
ToolChoice = str | NamedFunction | NamedFlatTool | None
Shape = PlainText | JsonObject | JsonSchema | FlatSchema | BareSchema | None


@dataclass(frozen=True)
class Asked:
    """What was asked for, ready to be sampled."""

    service: Service
    turns: tuple[Turn, ...]
    tools: tuple[ToolSchema, ...]
    ids: tuple[int, ...]
    choices: list[Choice]

    def stream(self, eager: bool) -> CallStream:
        """A reader of one choice's text."""
        return CallStream({tool.name: tool for tool in self.tools}, eager)

    @staticmethod
    def was_cut(choice: Choice) -> bool:
        """Whether something other than the model ended it: then half a call is no call."""
        return choice.finish != "stop" or choice.stop_reason is not None

    def read(self, choice: Choice) -> tuple[list[Event], Turn]:
        """What a choice that has ended says, and the message it makes, which is remembered."""
        stream = self.stream(eager=False)
        events = [*stream.feed(choice.text), *stream.finish(self.was_cut(choice))]
        said = said_by(events)
        self.remember(choice, said, stream)
        return events, said

    async def reading(self, flight: Flight, stream: CallStream) -> AsyncGenerator[list[Event]]:
        """What the only choice says, as it says it."""
        async with aclosing(flight.pieces()) as pieces:
            async for piece in pieces:
                new = stream.feed(piece.text) if piece.text else []
                if piece.finish is not None:
                    new += stream.finish(self.was_cut(self.choices[0]))
                yield new

    def remember(self, choice: Choice, said: Turn, stream: CallStream) -> None:
        """Count what was read, and keep its ids for a next turn, where they are what was told and make one message."""
        self.service.parsed["tool_calls"] += len(said.calls)
        self.service.parsed["malformed_calls"] += stream.malformed
        sampled, chat = [each.token for each in choice.tokens], self.service.chat
        if choice.finish == "abort" or choice.stop_reason is not None:
            return
        told = [] if stream.told_in_part else [said]
        if stream.malformed:  # who plays a session answers it as training does, and sends it back so
            choice.as_written = choice.text
            told.append(Turn("assistant", choice.text))
        if sampled and chat.stop_ids.isdisjoint(sampled[:-1]):
            for each in told:
                remember(chat, self.turns, self.tools, each, [*self.ids, *sampled], self.service.memory)


class RouteReply(Protocol):
    """An answer in a route's form."""

    asked: Asked

    def whole(self) -> dict[str, Any]:
        """All of it, once it is complete."""
        ...

    def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        """Piece by piece, as server-sent events."""
        ...


async def serve(
    service: Service, request: Request, route: str, schema: type[B], make: Callable[[B], RouteReply]
) -> Response:
    """Sample what was asked for, and tell it whole or as it comes. Raises ApiError where there is no room."""
    raw = await request.body()

    def read() -> tuple[B, RouteReply]:
        body = parse_body(raw, schema)
        service.check_model(body.model)
        answer = make(body)
        service.note_inert(route, body)
        return body, answer

    body, answer = await service.prepared(read)
    admitted = service.admitted(route, answer.asked.choices, body.request_id)
    return await told(request, admitted, body.stream, answer.events, lambda _: answer.whole())


def ask(
    service: Service,
    body: Common,
    turns: Sequence[Turn],
    tools: Sequence[ToolSchema],
    *,
    tool_choice: ToolChoice,
    parallel: bool,
    max_tokens: int | None,
    n: int = 1,
    top_logprobs: int = 0,
    prompt_logprobs: int | None = None,
    shape: Shape = None,
    strict: Collection[str] = (),
    cut_to_context: bool = False,
) -> Asked:
    """Render and check. Raises ApiError, ContextOverflow or InvalidRequest.

    Calls of the tools named in `strict` fit their schemas. `cut_to_context` lets an answer end with the context where
    `max_tokens` reaches beyond it.
    """
    service.check_room(n)
    ids, tools, required = prompt_of(service, turns, tools, tool_choice)
    constraint = constraint_of(service, body, shape)
    if constraint is not None and tools:
        raise bad("tools", "an answer that must be JSON can call none; leave out the tools or the response format")
    held = [tool for tool in tools if tool.name in strict]
    if (required or held) and body.ignore_eos:
        raise bad("ignore_eos", "a message whose calls are held to a grammar ends where its calls end")
    if required:
        constraint = service.grammars.of_calls(required, parallel, "tools")
    elif held:
        constraint = service.grammars.of_free_calls(tools, held, parallel, "tools")
    if cut_to_context and max_tokens is not None:
        max_tokens = min(max_tokens, max(service.engine.max_context - len(ids), 1))
    ends = None if parallel or not tools else lambda: _first_call(tools)
    choices = service.choices(
        ids, body, max_tokens=max_tokens, n=n, session_id=body.session_id, top_logprobs=top_logprobs, ends=ends,
        sampling_mask=body.return_sampling_mask, prompt_logprobs=prompt_logprobs, constraint=constraint,
    )  # fmt: skip
    return Asked(service, tuple(turns), tuple(tools), tuple(ids), choices)


def prompt_of(
    service: Service, turns: Sequence[Turn], tools: Sequence[ToolSchema], tool_choice: ToolChoice
) -> tuple[list[int], Sequence[ToolSchema], Sequence[ToolSchema]]:
    """The prompt's ids, the tools that may be called, and those of which one has to be."""
    required = _required(tool_choice, tools)
    if tool_choice == "none":
        tools = ()
    ids = conversation_ids(service.chat, turns, tools, service.memory, service.engine.max_context)
    return ids, tools, required


def constraint_of(service: Service, body: Common, shape: Shape) -> Callable[[], Constrained] | None:
    """What an answer of this shape may say. Raises ApiError for a shape that cannot be followed."""
    if shape is None or isinstance(shape, PlainText):
        return None
    if body.ignore_eos:
        raise bad("ignore_eos", "an answer that must be JSON ends where the JSON ends")
    if isinstance(shape, JsonObject):
        return service.grammars.of_schema(ANY_OBJECT, "response_format")
    if isinstance(shape, BareSchema):
        return service.grammars.of_schema(shape.shape, "output_config.format.schema")
    if isinstance(shape, FlatSchema):
        return service.grammars.of_schema(shape.shape, "text.format.schema")
    return service.grammars.of_schema(shape.json_schema.shape, "response_format.json_schema.schema")


def said_by(events: Sequence[Event]) -> Turn:
    """The message that was told, as the client will send it back."""
    text = "".join(each.text for each in events if isinstance(each, Words))
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for piece in events:
        if isinstance(piece, CallPiece):
            names[piece.index] = piece.name
            arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
    complete = [piece.index for piece in events if isinstance(piece, CallPiece) and piece.complete]
    return Turn("assistant", text, tuple((names[index], json.loads(arguments[index])) for index in complete))


def _required(choice: ToolChoice, tools: Sequence[ToolSchema]) -> Sequence[ToolSchema]:
    """The tools of which the message has to call one; none where it need not."""
    if choice is None or choice in ("none", "auto"):
        return ()
    if not tools:
        raise bad("tool_choice", "there are no tools to choose from")
    if isinstance(choice, str):
        return tools
    named = [tool for tool in tools if tool.name == choice.name]
    if not named:
        raise bad("tool_choice", f"no tool {choice.name[:100]!r} is given")
    return named


def _first_call(tools: Sequence[ToolSchema]) -> Callable[[str], bool]:
    """Ends a message after one call. Told the text on the engine's thread."""
    stream = CallStream({tool.name: tool for tool in tools}, eager=False)

    def ends(text: str) -> bool:
        stream.feed(text)
        return stream.calls > 0

    return ends

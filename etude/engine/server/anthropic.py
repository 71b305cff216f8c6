"""POST /v1/messages: the engine in the words of Anthropic's clients.

Owns the form of their answers, whole and streamed, and of errors in a stream. `blocks` reads what they ask; the rest is
what chat completions do.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.server.blocks import (
    Blocks,
    Conversation,
    CountBody,
    MessagesBody,
    choice_of,
    functions_of,
    turns_of_blocks,
)
from etude.engine.server.bodies import parse_body
from etude.engine.server.calls import CallPiece, Event
from etude.engine.server.errors import error_object
from etude.engine.server.flight import Flight
from etude.engine.server.http import event, reply
from etude.engine.server.messages import Asked, ask, prompt_of, said_by, serve
from etude.engine.server.prompts import tools_of
from etude.engine.server.service import Service
from etude.engine.server.shape import extras, usage
from etude.errors import EtudeError
from etude.harness.schema import ToolSchema
from etude.serving.openapi import Operation, answers

ROUTE, COUNT = "/v1/messages", "/v1/messages/count_tokens"


class Messages:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(
        Operation(
            ROUTE, "post", "An assistant's message, in Anthropic's form", ("id", "content", "usage"), MessagesBody,
            streams=True,
        )
    )  # fmt: skip
    async def create(self, request: Request) -> Response:
        return await serve(self._service, request, ROUTE, MessagesBody, self._answer)

    def _answer(self, body: MessagesBody) -> _Answer:
        return _Answer(self._service, body, self._ask(body))

    @answers(Operation(COUNT, "post", "How many tokens a prompt has", ("input_tokens",), CountBody))
    async def count(self, request: Request) -> Response:
        raw = await request.body()
        return reply({"input_tokens": await self._service.prepared(lambda: self._counted(raw))})

    def _counted(self, raw: bytes) -> int:
        body = parse_body(raw, CountBody)
        self._service.check_model(body.model)
        ids, _, _ = prompt_of(self._service, turns_of_blocks(body), _tools(body), choice_of(body.tool_choice))
        self._service.note_inert(COUNT, body)
        return len(ids)

    def _ask(self, body: MessagesBody) -> Asked:
        chosen = body.tool_choice
        return ask(
            self._service,
            body,
            turns_of_blocks(body),
            _tools(body),
            tool_choice=choice_of(chosen),
            parallel=chosen is None or not chosen.disable_parallel_tool_use,
            max_tokens=body.max_tokens,
            strict=[tool.name for tool in functions_of(body.tools or ()) if tool.strict],
            cut_to_context=True,  # as theirs has it; clients ask for 32,000 tokens whatever the model
            shape=None if body.output_config is None else body.output_config.format,
        )


def _tools(body: Conversation) -> list[ToolSchema]:
    return tools_of(functions_of(body.tools or ()), "tools")


@dataclass
class _Answer:
    """One answer, in its form."""

    service: Service
    body: MessagesBody
    asked: Asked
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")

    def __post_init__(self) -> None:
        self.choice = self.asked.choices[0]
        self.blocks = Blocks()

    def whole(self) -> dict[str, Any]:
        events, _ = self.asked.read(self.choice)
        for _ in [*self.blocks.grow(events), *self.blocks.finish()]:
            pass
        return {**self._message(), **self._ended(events), **self._beside()}

    async def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        told = self._told(flight)
        try:
            async for each in told:
                yield event(each, each["type"])
        except EtudeError as error:
            yield event({"type": "error", "error": error_object(error)}, "error")
        finally:
            await told.aclose()

    async def _told(self, flight: Flight) -> AsyncGenerator[dict[str, Any]]:
        yield {"type": "message_start", "message": self._message()}
        stream = self.asked.stream(eager=True)
        events: list[Event] = []
        async with aclosing(self.asked.reading(flight, stream)) as reading:
            async for new in reading:
                events += new
                for each in self.blocks.grow(new):
                    yield each
        for each in self.blocks.finish():
            yield each
        self.asked.remember(self.choice, said_by(events), stream)
        ended = self._ended(events)
        yield {"type": "message_delta", "usage": ended.pop("usage"), "delta": ended, **self._beside()}
        yield {"type": "message_stop"}

    def _message(self) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self.service.model}
        used = {"input_tokens": len(self.asked.ids), "output_tokens": 0}
        return {**head, "content": self.blocks.content, "stop_reason": None, "stop_sequence": None, "usage": used}

    def _ended(self, events: list[Event]) -> dict[str, Any]:
        counted = usage([self.choice])
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        used = {
            "input_tokens": counted["prompt_tokens"] - cached,  # theirs does not count what was cached
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": counted["completion_tokens"],
        }
        return {"stop_reason": self._reason(events), "stop_sequence": self.choice.stop_reason, "usage": used}

    def _reason(self, events: list[Event]) -> str:
        if self.choice.finish == "length" and self.choice.request.max_tokens < self.body.max_tokens:
            return "model_context_window_exceeded"
        if self.choice.finish != "stop":
            return "max_tokens"  # what was aborted was cut as well, and there is no word for it
        if self.choice.stop_reason is not None:
            return "stop_sequence"
        return "tool_use" if any(isinstance(each, CallPiece) for each in events) else "end_turn"

    def _beside(self) -> dict[str, Any]:
        given = {"prompt_token_ids": list(self.asked.ids)} if self.body.return_token_ids else {}
        return {**given, **extras(self.choice, self.body)}

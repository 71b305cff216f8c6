"""POST /v1/responses: the part of it that keeps no state here.

Owns the form of responses, whole and streamed. A conversation is sent whole each time; `previous_response_id` and
`store` are refused, since nothing is stored. `items` owns the output.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.server.bodies import NamedFlatTool
from etude.engine.server.calls import Event
from etude.engine.server.errors import error_object
from etude.engine.server.flight import Choice, Flight
from etude.engine.server.http import event
from etude.engine.server.items import Items
from etude.engine.server.messages import Asked, ask, said_by, serve
from etude.engine.server.prompts import tools_of, turns_of_items
from etude.engine.server.response_bodies import (
    FlatTool,
    HostedTool,
    Namespace,
    ResponsesBody,
    ResponseText,
    named_functions,
)
from etude.engine.server.service import Service
from etude.engine.server.shape import extras, usage
from etude.errors import EtudeError
from etude.serving.openapi import Operation, answers

ROUTE = "/v1/responses"
_STATUS = {"stop": "completed", "length": "incomplete", "abort": "cancelled"}


class Responses:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(
        Operation(ROUTE, "post", "A response, without state", ("id", "output", "usage"), ResponsesBody, streams=True)
    )
    async def create(self, request: Request) -> Response:
        return await serve(self._service, request, ROUTE, ResponsesBody, self._answer)

    def _answer(self, body: ResponsesBody) -> _Answer:
        return _Answer(self._service, body, self._ask(body))

    def _ask(self, body: ResponsesBody) -> Asked:
        named = named_functions(body.tools or ())
        return ask(
            self._service,
            body,
            turns_of_items(body.instructions, body.input),
            tools_of([tool.model_copy(update={"name": name}) for name, tool in named.items()], "tools"),
            tool_choice=body.tool_choice,
            parallel=body.parallel_tool_calls,
            max_tokens=body.max_output_tokens,
            strict=[name for name, tool in named.items() if tool.strict],
            shape=None if body.text is None else body.text.format,
        )


@dataclass
class _Answer:
    """One answer, in its form."""

    service: Service
    body: ResponsesBody
    asked: Asked
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(16)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.choice: Choice = self.asked.choices[0]
        spaces = [tool for tool in self.body.tools or () if isinstance(tool, Namespace)]
        named = {f"{space.name}.{each.name}": (space.name, each.name) for space in spaces for each in space.tools}
        self.items = Items(named)

    def whole(self) -> dict[str, Any]:
        events, _ = self.asked.read(self.choice)
        for _ in [*self.items.grow(events), *self.items.finish(self.choice.finish == "stop")]:
            pass
        return self._response(_STATUS[self.choice.finish or "abort"], ended=True)

    async def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        """Numbered, as the API has them. An error is told in its form, and the response has failed."""
        number = 0
        told = self._told(flight)
        try:
            async for each in told:
                yield event({**each, "sequence_number": number}, each["type"])
                number += 1
        except EtudeError as error:
            said = error_object(error)
            failed = {**self._response("failed", ended=False), "error": {"code": "server_error", **said}}
            yield event({"type": "response.failed", "response": failed, "sequence_number": number}, "response.failed")
        finally:
            await told.aclose()

    async def _told(self, flight: Flight) -> AsyncGenerator[dict[str, Any]]:
        for kind in ("created", "in_progress"):
            yield {"type": f"response.{kind}", "response": self._response("in_progress", ended=False)}
        stream = self.asked.stream(eager=True)
        events: list[Event] = []
        async with aclosing(self.asked.reading(flight, stream)) as reading:
            async for new in reading:
                events += new
                for each in self.items.grow(new):
                    yield each
        for each in self.items.finish(self.choice.finish == "stop"):
            yield each
        self.asked.remember(self.choice, said_by(events), stream)
        status = _STATUS[self.choice.finish or "abort"]
        kind = "completed" if status == "completed" else "incomplete"
        yield {"type": f"response.{kind}", "response": self._response(status, ended=True)}

    def _response(self, status: str, ended: bool) -> dict[str, Any]:
        body, choice = self.body, self.body.tool_choice
        reason = {"incomplete": "max_output_tokens", "cancelled": "aborted"}.get(status)
        response: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.service.model,
            "output": self.items.output,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": (body.text or ResponseText()).model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice.model_dump() if isinstance(choice, NamedFlatTool) else choice or "auto",
            "tools": [_told(tool) for tool in body.tools or ()],
            "truncation": "disabled",
            "usage": _usage(self.choice) if ended else None,
        }
        if ended:
            response |= extras(self.choice, body)
            if body.return_token_ids:
                response["prompt_token_ids"] = list(self.asked.ids)
        return response


def _told(tool: FlatTool | Namespace | HostedTool) -> dict[str, Any]:
    return {**tool.model_dump(), **({"strict": bool(tool.strict)} if isinstance(tool, FlatTool) else {})}


def _usage(choice: Choice) -> dict[str, Any]:
    counted = usage([choice])
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }

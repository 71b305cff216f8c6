"""POST /v1/chat/completions.

Owns the form of chat answers, whole and streamed. A message's tool calls are streamed as they are written: first the
name, then the arguments line by line. The ids of the model's message are stored for the next turn (`turns`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.running import SampledToken
from etude.engine.server.bodies import ChatBody, NamedTool, check_scored_whole
from etude.engine.server.calls import CallPiece, Event, Words
from etude.engine.server.errors import bad
from etude.engine.server.flight import Choice, Flight
from etude.engine.server.http import DONE, event
from etude.engine.server.messages import Asked, ask, said_by, serve
from etude.engine.server.prompts import tools_of, turns_of_messages
from etude.engine.server.service import Service
from etude.engine.server.shape import chat_logprobs, extras, prompt_logprobs, usage
from etude.serving.openapi import Operation, answers

ROUTE = "/v1/chat/completions"


class Chat:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(Operation(ROUTE, "post", "An assistant's message", ("id", "choices", "usage"), ChatBody, streams=True))
    async def create(self, request: Request) -> Response:
        return await serve(self._service, request, ROUTE, ChatBody, self._answer)

    def _answer(self, body: ChatBody) -> _Answer:
        return _Answer(self._service, body, self._ask(body))

    def _ask(self, body: ChatBody) -> Asked:
        if body.top_logprobs is not None and not body.logprobs:
            raise bad("top_logprobs", "needs logprobs to be true")
        check_scored_whole(body.prompt_logprobs, body.stream)
        choice = body.tool_choice
        return ask(
            self._service,
            body,
            turns_of_messages(body.messages),
            tools_of([tool.function for tool in body.tools or ()], "tools"),
            tool_choice=choice.function if isinstance(choice, NamedTool) else choice,
            parallel=body.parallel_tool_calls,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            n=body.n,
            top_logprobs=body.top_logprobs or 0,
            prompt_logprobs=body.prompt_logprobs,
            shape=body.response_format,
            strict=[tool.function.name for tool in body.tools or () if tool.function.strict],
        )


@dataclass
class _Answer:
    """One answer, in its form."""

    service: Service
    body: ChatBody
    asked: Asked

    def __post_init__(self) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())

    # --- whole --------------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        choices = self.asked.choices
        told: dict[str, Any] = {
            **self._head("chat.completion"),
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage(choices),
        }
        if self.body.return_token_ids:
            told["prompt_token_ids"] = list(self.asked.ids)
        if self.body.prompt_logprobs is not None:
            told["prompt_logprobs"] = prompt_logprobs(self.service.chat, choices[0])
        return told

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        events, said = self.asked.read(choice)
        calls = [_call(piece) for piece in events if isinstance(piece, CallPiece)]
        message = {"role": "assistant", "content": said.text or (None if calls else ""), "refusal": None}
        return {
            "index": index,
            "message": message | ({"tool_calls": calls} if calls else {}),
            "finish_reason": _reason(choice, bool(calls)),
            "stop_reason": choice.stop_reason,
            "logprobs": self._logprobs(choice.tokens),
            **extras(choice, self.body),
        }

    # --- streamed -----------------------------------------------------------------------------------------------------

    async def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        streams = [self.asked.stream(eager=True) for _ in flight.choices]
        told: list[list[Event]] = [[] for _ in flight.choices]
        first = {"prompt_token_ids": list(self.asked.ids)} if self.body.return_token_ids else {}
        for index in range(len(streams)):
            yield self._chunk(index, {"role": "assistant", "content": ""}, beside=first)
            first = {}
        pieces = flight.pieces()
        try:
            async for piece in pieces:
                index = piece.index
                new = streams[index].feed(piece.text) if piece.text else []
                if piece.finish is not None:
                    new += streams[index].finish(self.asked.was_cut(flight.choices[index]))
                told[index] += new
                if chunk := self._piece(index, new, piece.token):
                    yield chunk
                if piece.finish is not None:
                    choice = flight.choices[index]
                    self.asked.remember(choice, said_by(told[index]), streams[index])
                    yield self._last(index, choice, any(isinstance(each, CallPiece) for each in told[index]))
        finally:
            await pieces.aclose()
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield event({**self._head("chat.completion.chunk"), "choices": [], "usage": usage(flight.choices)})
        yield DONE

    def _piece(self, index: int, new: list[Event], token: SampledToken | None) -> bytes:
        """A chunk, if there is anything to tell: a token may bring nothing but its id."""
        beside: dict[str, Any] = {}
        if token is not None and self.body.return_token_ids:
            beside["token_ids"] = [token.token]
        if token is not None and self.body.logprobs:
            beside["logprobs"] = self._logprobs([token])
        delta = _delta(new)
        return self._chunk(index, delta, **beside) if delta or beside else b""

    def _last(self, index: int, choice: Choice, called: bool) -> bytes:
        ended: dict[str, Any] = {"finish_reason": _reason(choice, called), "stop_reason": choice.stop_reason}
        whole = extras(choice, self.body)
        whole.pop("token_ids", None)  # they came with the pieces
        return self._chunk(index, {}, **ended, **whole)

    def _chunk(
        self, index: int, delta: dict[str, Any], beside: dict[str, Any] | None = None, **of_choice: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **of_choice}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **(beside or {})})

    # --- both ---------------------------------------------------------------------------------------------------------

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.service.model}

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        return chat_logprobs(self.service.chat, tokens) if self.body.logprobs else None


def _delta(events: list[Event]) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if words := "".join(each.text for each in events if isinstance(each, Words)):
        delta["content"] = words
    if pieces := [each for each in events if isinstance(each, CallPiece)]:
        delta["tool_calls"] = [_call_delta(piece) for piece in pieces]
    return delta


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    if not piece.first:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    return {"index": piece.index, **_call(piece)}


def _call(piece: CallPiece) -> dict[str, Any]:
    return {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": piece.arguments}}


def _reason(choice: Choice, called: bool) -> str | None:
    return "tool_calls" if called and choice.finish == "stop" else choice.finish

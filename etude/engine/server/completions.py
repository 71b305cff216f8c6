"""POST /v1/completions.

Owns the form of plain completions, whole and streamed, of one prompt or several, and the filling of a gap: a `suffix`
becomes the three tokens that models of code are trained with, where the tokenizer has them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.running import SampledToken
from etude.engine.server.bodies import CompletionBody, check_scored_whole, parse_body
from etude.engine.server.errors import bad
from etude.engine.server.flight import Choice, Flight, Piece
from etude.engine.server.http import DONE, event, told
from etude.engine.server.messages import constraint_of
from etude.engine.server.prompts import check_length
from etude.engine.server.service import Service
from etude.engine.server.shape import extras, prompt_logprobs, token_text, usage
from etude.models.chat import ChatRenderer
from etude.serving.openapi import Operation, answers

ROUTE = "/v1/completions"
_GAP = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
"""Qwen's names, which most models of code share."""


class Completions:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(
        Operation(ROUTE, "post", "Plain text that goes on", ("id", "choices", "usage"), CompletionBody, streams=True)
    )
    async def create(self, request: Request) -> Response:
        raw = await request.body()
        body, prompts, choices = await self._service.prepared(lambda: self._asked(raw))
        answer = _Answer(self._service, body, prompts)
        admitted = self._service.admitted(ROUTE, choices, body.request_id)
        return await told(request, admitted, body.stream, answer.events, answer.whole)

    def _asked(self, raw: bytes) -> tuple[CompletionBody, int, list[Choice]]:
        """With how many prompts there are. Raises ApiError, ContextOverflow or InvalidRequest."""
        body = parse_body(raw, CompletionBody)
        self._service.check_model(body.model)
        check_scored_whole(body.prompt_logprobs, body.stream)
        given: Any = body.prompt
        texts: list[str | list[int]] = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        self._service.check_room(len(texts) * body.n)
        constraint = constraint_of(self._service, body, body.response_format)
        choices = [
            choice
            for text in texts
            for choice in self._service.choices(
                self._ids(text, body.suffix), body, max_tokens=body.max_tokens, n=body.n,
                top_logprobs=body.logprobs or 0, session_id=body.session_id if len(texts) == 1 else None,
                sampling_mask=body.return_sampling_mask, prompt_logprobs=body.prompt_logprobs, constraint=constraint,
            )
        ]  # fmt: skip
        self._service.note_inert(ROUTE, body)
        return body, len(texts), choices

    def _ids(self, prompt: str | list[int], suffix: str | None) -> list[int]:
        chat, texts = self._service.chat, [text for text in (prompt, suffix) if isinstance(text, str)]
        check_length(chat, texts, self._service.engine.max_context)
        if suffix is not None:
            return _with_gap(chat, prompt, suffix)
        return chat.encode(prompt) if isinstance(prompt, str) else prompt


def _with_gap(chat: ChatRenderer, prompt: str | list[int], suffix: str) -> list[int]:
    marks = [token for mark in _GAP if (token := chat.tokenizer.token_to_id(mark)) is not None]
    if len(marks) < len(_GAP):
        raise bad("suffix", f"this model cannot fill a gap: its tokenizer has no {_GAP[0]}", "unsupported_value")
    before = chat.encode(prompt) if isinstance(prompt, str) else prompt
    return [marks[0], *before, marks[1], *chat.encode(suffix), marks[2]]


@dataclass
class _Answer:
    """One answer, in its form."""

    service: Service
    body: CompletionBody
    prompts: int
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        return {
            **self._head(),
            "choices": [self._choice(index, choices) for index in range(len(choices))],
            "usage": usage(choices, self.prompts),
        }

    def _choice(self, index: int, choices: list[Choice]) -> dict[str, Any]:
        choice = choices[index]
        told = {
            "index": index,
            "text": choice.text,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            "logprobs": self._logprobs(choice.tokens, 0),
            **self._prompt_ids(choice),
            **extras(choice, self.body),
        }
        if self.body.prompt_logprobs is not None:  # the first choice of a prompt has scored it for all of them
            told["prompt_logprobs"] = prompt_logprobs(self.service.chat, choices[index - index % self.body.n])
        return told

    async def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        pieces = flight.pieces()
        begun: set[int] = set()
        offsets = [0] * len(flight.choices)
        try:
            async for piece in pieces:
                chunk = self._chunk(piece, flight.choices[piece.index], offsets[piece.index])
                if piece.index not in begun:
                    begun.add(piece.index)
                    chunk |= self._prompt_ids(flight.choices[piece.index])
                offsets[piece.index] += len(piece.text)
                if piece.text or piece.finish or self.body.return_token_ids or self.body.logprobs is not None:
                    yield event({**self._head(), "choices": [chunk]})
        finally:
            await pieces.aclose()
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield event({**self._head(), "choices": [], "usage": usage(flight.choices, self.prompts)})
        yield DONE

    def _chunk(self, piece: Piece, choice: Choice, offset: int) -> dict[str, Any]:
        tokens = [] if piece.token is None else [piece.token]
        chunk: dict[str, Any] = {
            "index": piece.index,
            "text": piece.text,
            "finish_reason": piece.finish,
            "logprobs": self._logprobs(tokens, offset),
        }
        if piece.finish is not None:
            whole = extras(choice, self.body)
            whole.pop("token_ids", None)  # they came with the pieces
            return chunk | {"stop_reason": choice.stop_reason, **whole}
        return chunk | ({"token_ids": [each.token for each in tokens]} if self.body.return_token_ids else {})

    def _prompt_ids(self, choice: Choice) -> dict[str, Any]:
        return {"prompt_token_ids": list(choice.request.prompt_ids)} if self.body.return_token_ids else {}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.service.model}

    def _logprobs(self, tokens: Sequence[SampledToken], offset: int) -> dict[str, Any] | None:
        """In the older form; `offset` is where the first token's text begins in the choice's."""
        if self.body.logprobs is None:
            return None
        chat = self.service.chat
        texts = [token_text(chat, each.token) for each in tokens]
        offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [{token_text(chat, token): value for token, value in each.top} for each in tokens],
            "text_offset": offsets,
        }

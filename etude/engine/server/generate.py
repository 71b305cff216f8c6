"""POST /generate: token ids in, token ids out.

Owns the form that trainers and routers use, vLLM's `/inference/v1/generate`: no text is made or read, but for stop
strings. Log-probabilities are of the distribution sampled from; `weight_versions` says which weights sampled what.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.running import SampledToken
from etude.engine.server.bodies import GenerateBody, check_scored_whole, parse_body
from etude.engine.server.flight import Choice, Flight
from etude.engine.server.http import DONE, event, told
from etude.engine.server.service import Service
from etude.engine.server.shape import extras, prompt_logprobs, usage
from etude.serving.openapi import Operation, answers

ROUTE = "/generate"
_DONE = Operation(ROUTE, "post", "Token ids in, token ids out", ("id", "choices"), GenerateBody, streams=True)


class Generate:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(replace(_DONE, path="/inference/v1/generate"))
    @answers(_DONE)
    async def create(self, request: Request) -> Response:
        raw = await request.body()
        body, choices = await self._service.prepared(lambda: self._asked(raw))
        answer = _Answer(self._service, body)
        admitted = self._service.admitted(ROUTE, choices, body.request_id)
        return await told(request, admitted, body.stream, answer.events, answer.whole)

    def _asked(self, raw: bytes) -> tuple[GenerateBody, list[Choice]]:
        body = parse_body(raw, GenerateBody)
        self._service.check_model(body.model)
        sampling = body.sampling_params
        check_scored_whole(sampling.prompt_logprobs, body.stream)
        self._service.check_room(sampling.n)
        return body, self._service.choices(
            body.token_ids, sampling, max_tokens=sampling.max_tokens, n=sampling.n, session_id=body.session_id,
            top_logprobs=sampling.logprobs or 0, sampling_mask=body.return_sampling_mask,
            prompt_logprobs=sampling.prompt_logprobs,
        )  # fmt: skip


@dataclass
class _Answer:
    """One answer, in its form."""

    service: Service
    body: GenerateBody
    id: str = field(default_factory=lambda: f"gen-{secrets.token_hex(12)}")

    def whole(self, choices: list[Choice]) -> dict[str, Any]:
        told = [
            {
                "index": index,
                "finish_reason": choice.finish,
                "stop_reason": choice.stop_reason,
                "logprobs": self._logprobs(choice.tokens),
                **extras(choice, self.body),
            }
            for index, choice in enumerate(choices)
        ]
        scored: dict[str, Any] = {}
        if self.body.sampling_params.prompt_logprobs is not None:
            scored["prompt_logprobs"] = prompt_logprobs(self.service.chat, choices[0])
        named = {"id": self.id, "request_id": self.body.request_id or self.id}
        return {**named, "choices": told, **scored, "usage": usage(choices)}

    async def events(self, flight: Flight) -> AsyncGenerator[bytes]:
        pieces = flight.pieces()
        try:
            async for piece in pieces:
                told: dict[str, Any] = {"index": piece.index, "finish_reason": piece.finish}
                if piece.token is not None:
                    told |= {"token_ids": [piece.token.token], "logprobs": self._logprobs([piece.token])}
                else:
                    choice = flight.choices[piece.index]
                    last = extras(choice, self.body)
                    told |= last | {"token_ids": [], "stop_reason": choice.stop_reason}
                yield event({"id": self.id, "choices": [told]})
        finally:
            await pieces.aclose()
        yield DONE

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        """Of what was sampled always; of the most likely if asked for."""
        content = [
            {
                "token_id": each.token,
                "logprob": each.logprob,
                "top_logprobs": [{"token_id": token, "logprob": value} for token, value in each.top],
            }
            for each in tokens
        ]
        return {"content": content}

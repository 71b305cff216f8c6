"""The routes by which rollouts borrow the engine, and use it while it is lent.

Owns their form in JSON: a lease for a weight store, then tokens in and tokens out under that lease, and the end of the
loan, which is waited for. A borrower's requests are no users': they are neither admitted, nor counted, nor named as
theirs. Talks to: `lending`, which decides.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from etude.engine.server.bodies import Body, Many, TokenId, TokenIds, parse_body
from etude.engine.server.errors import ApiError, bad
from etude.engine.server.http import reply, unless_gone
from etude.engine.server.lending import Lending, Loan
from etude.engine.server.service import Service
from etude.engine.server.shape import routed_experts
from etude.harness.sampler import SampleRequest
from etude.models.config import ExpertFormat
from etude.records import Version
from etude.serving.openapi import Operation, answers
from etude.weights.store import StoreConfig
from etude.weights.subscriber import SubscriberConfig


class BorrowBody(Body):
    """POST /loan: borrow the engine for the weights in a store."""

    borrower: str = Field(min_length=1, max_length=200)
    store: str = Field(min_length=1, max_length=2000)
    expert_format: ExpertFormat = "plain"
    """What the borrower's trainer multiplies experts in."""


class LeaseBody(Body):
    """What every request of a borrower has."""

    lease: str = Field(min_length=1, max_length=200)


class LoanSampleBody(LeaseBody):
    """POST /loan/sample: continue token ids, as `harness.sampler.SampleRequest` has it."""

    session_id: str = Field(max_length=400)
    prompt_ids: TokenIds
    max_tokens: int = Field(ge=1)
    stop_ids: Many[TokenId] = []
    temperature: float = Field(1.0, ge=0)
    seed: int | None = None
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)


class LoanLoadBody(LeaseBody):
    """POST /loan/load: serve this version of the borrower's store."""

    version: int = Field(ge=0, lt=1 << 32)


class LoanDropBody(LeaseBody):
    """POST /loan/drop: forget these sessions."""

    session_ids: Many[str]


class LoanWaitBody(LeaseBody):
    """POST /loan/wait: answer when the loan is over, or after so long; the lease is kept meanwhile."""

    seconds: float = Field(10.0, gt=0, le=60)


@dataclass(frozen=True)
class Loans:
    """Over one service. `config` says how stores are read, and what the engine multiplies in."""

    service: Service
    expert_format: ExpertFormat
    weight_store: StoreConfig
    subscriber: SubscriberConfig

    @answers(
        Operation("/lending", "get", "What the engine is used for, and whether it would be lent", ("state", "uses"))
    )
    async def figures(self, request: Request) -> Response:
        return reply(self._lending().figures())

    @answers(Operation("/loan", "post", "Borrow the engine", ("lease", "lease_s", "return_s"), BorrowBody))
    async def borrow(self, request: Request) -> Response:
        body = parse_body(await request.body(), BorrowBody)
        lending = self._lending()
        if body.expert_format != self.expert_format:
            raise bad("expert_format", f"{body.expert_format!r}, and this server multiplies in {self.expert_format!r}")
        if self.service.draining:
            raise ApiError(503, "this server is stopping; ask another", "draining", retry_after_s=5)
        self.service.raise_if_down()
        loan = await lending.lend(body.borrower, body.store, self.weight_store, self.subscriber)
        config = lending.config
        return reply({"lease": loan.id, "lease_s": config.lease_s, "return_s": config.return_s})

    @answers(
        Operation("/loan/sample", "post", "Token ids in and out, while it is lent", ("token_ids",), LoanSampleBody)
    )
    async def sample(self, request: Request) -> Response:
        lending, loan, body = await self._held(request, LoanSampleBody)
        asked = SampleRequest(
            session_id=body.session_id,
            prompt_ids=tuple(body.prompt_ids),
            max_tokens=body.max_tokens,
            stop_ids=frozenset(body.stop_ids),
            temperature=body.temperature,
            seed=body.seed,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
        )
        told = await unless_gone(request, lending.sample(loan, asked))
        return reply({
            "token_ids": told.token_ids, "logprobs": told.logprobs, "versions": told.versions, "finish": told.finish,
            "cached_tokens": told.cached_tokens, "routed_experts": routed_experts(told.routed_experts),
        })  # fmt: skip

    @answers(Operation("/loan/load", "post", "Serve a version of the borrower's", ("loaded",), LoanLoadBody))
    async def load(self, request: Request) -> Response:
        lending, loan, body = await self._held(request, LoanLoadBody)
        served = await lending.load(loan, Version(body.version))
        return reply({"loaded": None if served is None else served.as_json()})

    @answers(Operation("/loan/drop", "post", "Forget sessions of the borrower's", ("dropped",), LoanDropBody))
    async def drop(self, request: Request) -> Response:
        lending, loan, body = await self._held(request, LoanDropBody)
        for session in body.session_ids:
            lending.drop(loan, session)
        return reply({"dropped": len(body.session_ids)})

    @answers(Operation("/loan/stats", "post", "The engine's counters", ("busy_s",), LeaseBody))
    async def stats(self, request: Request) -> Response:
        lending, _, _ = await self._held(request, LeaseBody)
        return reply(lending.engine.stats())

    @answers(Operation("/loan/wait", "post", "Wait for the end of a loan, and keep it", ("over",), LoanWaitBody))
    async def wait(self, request: Request) -> Response:
        lending, loan, body = await self._held(request, LoanWaitBody)
        return reply({"over": await unless_gone(request, lending.over(loan, body.seconds))})

    @answers(Operation("/loan/end", "post", "Give the engine back", ("seconds",), LeaseBody))
    async def end(self, request: Request) -> Response:
        lending, _, _ = await self._held(request, LeaseBody)
        began = time.monotonic()
        await lending.back("its borrower")
        return reply({"seconds": time.monotonic() - began})

    # ----------------------------------------------------------------------------------------------------------------

    def _lending(self) -> Lending:
        if self.service.lending is None:
            raise ApiError(409, "this server lends nothing; start it with a `lending` table", "no_lending")
        return self.service.lending

    async def _held(self, request: Request, schema: type[Any]) -> tuple[Lending, Loan, Any]:
        body, lending = parse_body(await request.body(), schema), self._lending()
        return lending, lending.held(body.lease), body

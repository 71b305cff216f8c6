"""What all routes share: admission, the running requests, and how they end.

Owns admission (a bounded number of choices; beyond it 429 and when to come again), the requests under way by name, so
that they can be aborted, draining, and pausing. Knows the engine, the chat format and the memory of turns; knows
nothing of HTTP or of any route's form.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import structlog
from pydantic import BaseModel

from etude.engine.running import Constraint
from etude.engine.server.bodies import Common, Sampling
from etude.engine.server.errors import ApiError, bad
from etude.engine.server.figures import Figures
from etude.engine.server.flight import Choice, Flight
from etude.engine.server.grammar import Grammars
from etude.engine.server.inert import inert_fields
from etude.engine.server.lending import Lending, LendingConfig
from etude.engine.server.text import TextStream
from etude.engine.server.turns import Turns
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import WeightUpdates
from etude.harness.sampler import NO_SESSION, SampleRequest
from etude.models.chat import ChatRenderer
from etude.models.generation import Generation
from etude.records import Version

PauseMode = Literal["abort", "wait", "keep"]
T = TypeVar("T")
_PREPARED_TOGETHER = 4
"""Requests that are read and rendered beside the event loop, which has to have its turn between them."""


@dataclass
class Service:
    """Over one open engine, which it does not close. Use on one event loop; what makes choices also beside it."""

    engine: TorchEngine
    chat: ChatRenderer
    model: str
    """The name it is served under."""
    max_waiting: int
    """Choices beyond those the engine runs together."""
    updates: WeightUpdates | None
    memory: Turns
    generation: Generation = field(default_factory=Generation)
    """What the checkpoint says of how it is sampled."""
    loans: LendingConfig | None = None
    """With it, the engine is lent to rollouts while users are quiet."""
    created: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    under_way: int = 0
    """Choices that were let in and have not ended."""
    named: dict[str, Flight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figures = Figures(self.engine.stats, self._present)
        if self.updates is not None:
            self.figures.registry.register(self.updates.lag)
        self.lending: Lending | None = None
        if self.loans is not None:
            self.lending = Lending(self.engine, self.loans, self.updates, lambda: self.under_way)
            self.figures.registry.register(self.lending)
        self._inert: set[str] = set()
        self._preparing = asyncio.Semaphore(_PREPARED_TOGETHER)
        self.parsed = {"tool_calls": 0, "malformed_calls": 0}
        self.grammars = Grammars(self.chat, self.engine.decoder.config.vocab_size)

    def _present(self) -> dict[str, float]:
        remembered = {"remembered_tokens": self.memory.tokens, "remembered_hits": self.memory.hits}
        compiled = {"schemas_compiled": self.grammars.compiled}
        return {"under_way": self.under_way, "draining": self.draining, **remembered, **self.parsed, **compiled}

    # --- requests -----------------------------------------------------------------------------------------------------

    async def prepared(self, work: Callable[[], T]) -> T:
        """What `work` returns. A large request takes seconds to read and to render, in which others are answered."""
        async with self._preparing:
            return await asyncio.to_thread(work)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError for another model than the one served."""
        if name is not None and name != self.model:
            said = f"model: {name[:100]!r} is not served here; {self.model!r} is"
            raise ApiError(404, said, "model_not_found", "model")

    def note_inert(self, route: str, body: BaseModel) -> None:
        """Name in the log what this request gives and no answer depends on; each field once."""
        new = {f"{route} {field}" for field in inert_fields(body)} - self._inert
        if new:
            self._inert |= new
            fields = sorted(each.partition(" ")[2] for each in new)
            structlog.get_logger("engine").info("fields without effect here", route=route, fields=fields)

    def check_room(self, choices: int) -> None:
        """Raises ApiError where so many cannot be let in; asked before there is any work with them, and as they come
        in."""
        if self.draining:
            raise ApiError(503, "this server is stopping; ask another", "draining", retry_after_s=5)
        self.raise_if_down()
        room = self.engine.config.max_running + self.max_waiting
        if choices > room:
            raise bad("n", f"{choices} choices are more than this server ever takes ({room})")
        if self.under_way + choices > room:
            again = max(1, math.ceil(self.figures.mean_s))
            said = f"{self.under_way} choices are under way, and there is room for {room}; ask again in {again} s"
            raise ApiError(429, said, "queue_full", retry_after_s=again)

    def choices(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        max_tokens: int | None,
        n: int,
        session_id: str | None,
        top_logprobs: int = 0,
        sampling_mask: bool = False,
        prompt_logprobs: int | None = None,
        ends: Callable[[], Callable[[str], bool]] | None = None,
        constraint: Callable[[], Constraint] | None = None,
    ) -> list[Choice]:
        """The choices of one prompt. Without `max_tokens`, as many as fit; the first one scores the prompt if that is
        asked for. Raises what the engine would refuse.
        """
        sampling = self._as_published(sampling)
        made, prompt, stop_ids = [], tuple(ids), frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= self.chat.stop_ids
        for index in range(n):
            request = SampleRequest(
                session_id=NO_SESSION if session_id is None or n > 1 else session_id,
                prompt_ids=prompt,
                max_tokens=max(self.engine.max_context - len(ids), 1) if max_tokens is None else max_tokens,
                stop_ids=stop_ids,
                temperature=sampling.temperature,
                seed=None if sampling.seed is None else _seed_of(sampling.seed, index),
                top_k=max(sampling.top_k, 0),
                top_p=sampling.top_p,
                min_p=sampling.min_p,
                top_logprobs=top_logprobs,
                sampling_mask=sampling_mask,
                prompt_logprobs=prompt_logprobs if index == 0 else None,
            )
            if index == 0:
                self.engine.check(request)
            stream = TextStream(self.chat.decode, sampling.stops, sampling.include_stop_str_in_output)
            made.append(Choice(request, stream, ends() if ends else None, constraint() if constraint else None))
        return made

    def _as_published(self, sampling: Sampling) -> Sampling:
        """What a request leaves open is as the checkpoint says; but for /generate, whose askers know what they draw."""
        given = self.generation.sampling if isinstance(sampling, Common) else {}
        fresh = {key: value for key, value in given.items() if key not in sampling.model_fields_set}
        return sampling.model_copy(update=fresh) if fresh else sampling

    @contextmanager
    def admitted(self, route: str, choices: list[Choice], name: str | None) -> Generator[Flight]:
        """Let a request in for as long as the block lasts. Raises ApiError where there is no room."""
        self.check_room(len(choices))
        name = name or secrets.token_hex(16)
        if name in self.named:
            raise ApiError(409, f"request_id: {name[:100]!r} is under way", "request_id_taken", "request_id")
        flight = self.named[name] = Flight(self.engine, choices, self._ready)
        self.under_way += len(choices)
        if self.lending is not None:
            self.lending.request_started()
        began = time.monotonic()
        try:
            yield flight
        finally:
            self.under_way -= len(choices)
            del self.named[name]
            self._count(route, flight, began)
            if self.lending is not None:
                self.lending.request_ended()

    async def _ready(self) -> None:
        """The engine holds what users are to be served with."""
        if self.lending is not None:
            await self.lending.for_users()

    def _count(self, route: str, flight: Flight, began: float) -> None:
        now = time.monotonic()
        self.figures.ended(route, flight.outcome, now - began)
        if flight.first_token_at is not None:
            self.figures.first_token(route, flight.first_token_at - began)
        for choice in flight.choices:
            cached = choice.completion.cached_tokens if choice.completion else 0
            self.figures.tokens(len(choice.request.prompt_ids), cached, len(choice.tokens))

    # --- control ------------------------------------------------------------------------------------------------------

    def abort(self, names: Sequence[str] | None) -> int:
        """End requests with what they have: those named, or all. Returns how many there were."""
        chosen = list(self.named.values()) if not names else [self.named[each] for each in names if each in self.named]
        for flight in chosen:
            flight.abort()
        return len(chosen)

    @property
    def version(self) -> Version:
        """Of the weights that users are served with."""
        lent = self.lending is not None and self.lending.state != "serving"
        return self.lending.own_version if lent and self.lending is not None else self.engine.version

    def raise_if_down(self) -> None:
        """Raises what makes it impossible to serve users."""
        self.engine.raise_if_down()
        if self.lending is not None and self.lending.failure is not None:
            raise self.lending.failure

    async def own(self) -> None:
        """Have the engine back, if it is lent: an operator is about to change what it does."""
        if self.lending is not None:
            await self.lending.back("an operator")

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling. What is under way ends now ("abort"), by itself first ("wait"), or stays ("keep")."""
        await self.own()
        if mode == "abort":
            self.abort(None)
        await asyncio.wrap_future(self.engine.pause("wait" if mode == "wait" else "keep"))

    async def drain(self, timeout_s: float) -> None:
        """Let nobody in any more, and what is under way end; after `timeout_s` with what it has."""
        self.draining = True
        self.engine.resume()
        if self.lending is not None:
            self.lending.recall("the server's end")
        end = time.monotonic() + timeout_s
        while self.named and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.abort(None)


def _seed_of(seed: int, index: int) -> int:
    """Each choice its own: the first has the seed given, so that asking for more changes nothing of it."""
    return seed + (index << 64)

"""One request on its way through the engine.

Owns what the step loop keeps of a request, and how its future is resolved: the waiting side may give up at any moment,
from any thread, and resolving must then do nothing. Never decides who runs (`engine.torch_engine`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from torch import Tensor

from etude.engine.kv_cache import CachedSequence
from etude.engine.lookup import Proposal
from etude.engine.sampling import GREEDY_BELOW, NO_TRUNCATION, Truncation, score, support, top_logprobs, uniform
from etude.errors import ContextOverflow, InvalidRequest
from etude.harness.sampler import Completion, PromptTokenScore, SampleRequest
from etude.records import Routes

T = TypeVar("T")
_SCORED_ROWS = 64
"""Most prompt tokens scored at once: a row is as wide as the vocabulary."""


class SampledToken(NamedTuple):
    """One token as it was sampled. If asked for, `top` has the most likely ones and their log-probabilities, and `mask`
    those it was drawn from, () where that was the whole vocabulary.
    """

    token: int
    logprob: float
    version: int
    top: tuple[tuple[int, float], ...] = ()
    mask: tuple[int, ...] = ()


class Constraint(Protocol):
    """What a request may say, token by token. Used on the engine's thread; it must be quick."""

    def allowed(self) -> Tensor:
        """Which tokens may come next, bool [V]; at least one."""
        ...

    def take(self, token: int) -> None:
        """This one came. An error ends the request."""
        ...


OnToken = Callable[[SampledToken], bool]
"""Called on the engine's thread with each token as it is sampled; True ends the request there. It must be quick."""


@dataclass(eq=False)
class RunningRequest:
    """One request on its way."""

    request: SampleRequest
    sequence: CachedSequence
    future: Future[Completion]
    seed: int
    on_token: OnToken | None = None
    constraint: Constraint | None = None
    sampled: list[SampledToken] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    """Tokens computed in this step as if they had been sampled already."""
    proposals: list[Proposal] = field(default_factory=list)
    """What was guessed to come next, the most likely first; its first tokens are `proposed`, if it was worth it."""
    draft: list[int] = field(default_factory=list)
    """What the checkpoint's own layer says may come next."""
    cached: int | None = None
    """Prompt tokens whose keys and values were there when its first were computed."""
    scores: list[PromptTokenScore] = field(default_factory=list)
    """Of the prompt from its second token on, where asked for."""
    moved_at: float = field(default_factory=time.monotonic)
    """When something was last computed of it, or else when it came (`time.monotonic`)."""

    def __post_init__(self) -> None:
        self.cut = Truncation(self.request.top_k, self.request.top_p, self.request.min_p)
        self.is_cut = self.cut != NO_TRUNCATION
        self.greedy = self.request.temperature < GREEDY_BELOW
        self.wants_more = bool(self.request.top_logprobs or self.request.sampling_mask)

    async def ended(self, silence_s: float) -> Completion:
        """Wait for its end. Raises TimeoutError where nothing is computed of it for so long."""
        result = asyncio.wrap_future(self.future)
        while not result.done():
            left = self.moved_at + silence_s - time.monotonic()
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({result}, timeout=left)
        return result.result()

    @property
    def to_compute(self) -> int:
        return len(self.sequence.token_ids) - self.sequence.computed

    @property
    def tokens_left(self) -> int:
        """Most tokens it still may say."""
        return self.request.max_tokens - len(self.sampled)

    def uniform_for(self, ahead: int) -> float:
        """What the token so many after the next is drawn by; a greedy one needs none."""
        return 0.0 if self.greedy else uniform(self.seed, len(self.sequence.token_ids) + ahead)

    def with_details(self, sampled: SampledToken, logprobs_V: Tensor) -> SampledToken:
        """A token with what the request wants to know beside it."""
        most = self.request.top_logprobs
        top = top_logprobs(logprobs_V, most) if most else ()
        return sampled._replace(top=top, mask=support(logprobs_V) if self.request.sampling_mask else ())

    def score(self, hidden_CD: Tensor, logits_of: Callable[[Tensor], Tensor]) -> int:
        """Score the prompt's tokens that follow those just computed, of which these are the hidden states; what was
        preempted has some already. Returns how many.
        """
        prompt, first, before = self.request.prompt_ids, self.sequence.computed, len(self.scores)
        end = min(len(hidden_CD), len(prompt) - 1 - first)
        for start in range(before - first, end, _SCORED_ROWS):
            logits = logits_of(hidden_CD[start : min(start + _SCORED_ROWS, end)])
            tokens = prompt[first + start + 1 :][: len(logits)]
            self.scores += score(logits, tokens, self.request.prompt_logprobs or 0)
        return len(self.scores) - before

    def completion(self, stopped: bool, routes: Routes) -> Completion:
        """What was sampled, as it is handed out."""
        return Completion(
            token_ids=tuple(each.token for each in self.sampled),
            logprobs=tuple(each.logprob for each in self.sampled),
            versions=tuple(each.version for each in self.sampled),
            finish="stop" if stopped else "length",
            routed_experts=routes,
            cached_tokens=self.cached or 0,
            masks=tuple(each.mask for each in self.sampled) if self.request.sampling_mask else (),
            prompt_scores=tuple(self.scores),
        )


def check(request: SampleRequest, vocabulary: int, max_context: int) -> None:
    """Raises ContextOverflow or InvalidRequest for what a model of such a size could never carry out."""
    ids, name = request.prompt_ids, request.session_id or "request"
    if not ids:
        raise InvalidRequest(f"{name}: the prompt is empty; give at least one token")
    if min(ids) < 0 or max(ids) >= vocabulary:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise InvalidRequest(f"token id {wrong} is not of this model, which has 0 to {vocabulary - 1}")
    if len(ids) + request.max_tokens > max_context:
        wanted = f"{len(ids)} prompt and {request.max_tokens} new tokens"
        raise ContextOverflow(f"{name}: {wanted} do not fit a context of {max_context}")


def resolve(future: Future[T], result: T) -> None:
    """End a future, unless whoever waited has given it up."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(result)


def reject(future: Future[T], error: BaseException) -> None:
    """End a future with an error, unless whoever waited has given it up."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)

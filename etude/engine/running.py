"""One request on its way through the engine.

Owns what the step loop keeps of a request, and how its future is settled: whoever waits may give up at any moment, from
any thread, and settling must then be nothing. Never decides who runs (`engine.torch_engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from etude.engine.kv_cache import Sequence
from etude.engine.sampling import Cut
from etude.harness.sampler import Completion, SampleRequest
from etude.records import Routes

T = TypeVar("T")


class Sampled(NamedTuple):
    """One token as it was sampled. `top` holds the most likely ones and their log-probabilities, if asked for."""

    token: int
    logprob: float
    version: int
    top: tuple[tuple[int, float], ...] = ()


OnToken = Callable[[Sampled], bool]
"""Called on the engine's thread with each token as it is sampled; True ends the request there. It must be quick."""


@dataclass(eq=False)
class Running:
    """One request on its way."""

    request: SampleRequest
    sequence: Sequence
    future: Future[Completion]
    seed: int
    on_token: OnToken | None = None
    sampled: list[Sampled] = field(default_factory=list)
    cached: int | None = None
    """Prompt tokens whose keys and values were there when it was first taken up."""

    @property
    def to_compute(self) -> int:
        return len(self.sequence.token_ids) - self.sequence.computed

    @property
    def cut(self) -> Cut:
        return Cut(self.request.top_k, self.request.top_p, self.request.min_p)

    def completion(self, stopped: bool, routes: Routes) -> Completion:
        """What was sampled, as it is handed out."""
        return Completion(
            token_ids=tuple(each.token for each in self.sampled),
            logprobs=tuple(each.logprob for each in self.sampled),
            versions=tuple(each.version for each in self.sampled),
            finish="stop" if stopped else "length",
            routed_experts=routes,
            cached_tokens=self.cached or 0,
        )


def settle(future: Future[T], result: T) -> None:
    """End a future, unless whoever waited has given it up."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(result)


def settle_with(future: Future[T], error: BaseException) -> None:
    """End a future with an error, unless whoever waited has given it up."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)

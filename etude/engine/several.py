"""Several engines of one model in one process, each on a thread of its own.

A step of a small model gains nothing from a second core: the parts of a product are too small, and half of a step waits
for them. Two engines of one thread each, with one copy of the weights, give twice the tokens, and the same ones: a
token depends on its session alone.

Owns which engine a session is played by. Never samples, and takes no new weights: they would change under the other
engines' steps. Talks to: torch_engine.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator

import torch

from etude.engine.cache_size import affordable, available_bytes
from etude.engine.config import EngineConfig
from etude.engine.torch_engine import TorchEngine
from etude.harness.sampler import Completion, SampleRequest
from etude.models.decoder import Decoder


class SeveralEngines:
    """Implements `harness.sampler.Sampler`, for one event loop. A session stays with the engine that has its cache."""

    def __init__(self, engines: list[TorchEngine]) -> None:
        self.engines = engines
        self._of_session: dict[str, int] = {}
        self._under_way = Counter(dict.fromkeys(range(len(engines)), 0))

    @property
    def max_context(self) -> int:
        return min(each.max_context for each in self.engines)

    async def sample(self, request: SampleRequest) -> Completion:
        """Raises what the engine raises."""
        number = self._of_session.setdefault(request.session_id, min(self._under_way, key=self._under_way.__getitem__))
        self._under_way[number] += 1
        try:
            return await self.engines[number].sample(request)
        finally:
            self._under_way[number] -= 1


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Of torch's arithmetic, for what is started inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def open_engines(decoder: Decoder, config: EngineConfig, count: int) -> Generator[SeveralEngines]:
    """So many, each on one thread; a single one has all of torch's. Closed at the end. Where nobody says how large a
    cache is, each takes its share of the memory: each would see all of it free."""
    if not config.cache_tokens:
        share = affordable(decoder.config, available_bytes() // count)
        config = config.model_copy(update={"cache_tokens": share})
    with one_thread() if count > 1 else contextlib.nullcontext(), contextlib.ExitStack() as opened:
        engines = []
        for _ in range(count):
            engines.append(TorchEngine(decoder, config))
            opened.callback(engines[-1].close)
        yield SeveralEngines(engines)

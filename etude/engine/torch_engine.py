"""The in-process engine: continuous batching over the shared decoder, on CPU.

Owns the step loop, in a thread of its own: admit, pack (decode rows first, then prefill chunks), one forward, sample,
deliver. New weights are put in between two steps; running sequences go on with the cache they have, and every token is
marked with the version that sampled it. A session's cache is kept between its turns, until the pages are needed. Talks
to: kv_cache (pages), attention, sampling. Never touches files or the network.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch

from etude.engine.attention import PagedAttention
from etude.engine.config import EngineConfig
from etude.engine.kv_cache import OutOfPages, PagedCache, Sequence
from etude.engine.sampling import sample_rows, uniform
from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError
from etude.harness.sampler import Completion, SampleRequest
from etude.kernels.decode_attention import PAGE
from etude.models.decoder import Decoder
from etude.models.state import load_bits
from etude.records import BASE_VERSION, Version


@dataclass(eq=False)
class Running:
    """One request on its way."""

    request: SampleRequest
    sequence: Sequence
    future: Future[Completion]
    seed: int
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def to_compute(self) -> int:
        return len(self.sequence.token_ids) - self.sequence.computed


class TorchEngine:
    """Implements `harness.sampler.Sampler`. Safe to call from any thread or event loop."""

    def __init__(self, decoder: Decoder, config: EngineConfig, version: Version = BASE_VERSION) -> None:
        self.decoder, self.config, self.version = decoder, config, version
        self.cache = PagedCache(decoder.config, config.cache_tokens // PAGE)
        self.counters: Counter[str] = Counter()
        self.busy_s = 0.0
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._idle: OrderedDict[str, Sequence] = OrderedDict()  # sessions between turns, least recent first
        self._cancelled: set[str] = set()
        self._swap: tuple[Mapping[str, np.ndarray], Version, Future[None]] | None = None
        self._paused = self._closed = False
        self._failure: BaseException | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    # --- called from anywhere -----------------------------------------------------------------------------------------

    async def sample(self, request: SampleRequest) -> Completion:
        """Raises ContextOverflow, DeadlineExceeded, or the error that stopped the engine."""
        limit = min(self.decoder.config.max_context, self.config.cache_tokens)
        if len(request.prompt_ids) + request.max_tokens > limit:
            wanted = f"{len(request.prompt_ids)} prompt and {request.max_tokens} new tokens"
            raise ContextOverflow(f"{request.session_id}: {wanted} do not fit a context of {limit}")
        seed = request.seed if request.seed is not None else int.from_bytes(np.random.bytes(6), "big")
        running = Running(request, Sequence(list(request.prompt_ids)), Future(), seed)
        with self._wake:
            self._raise_if_down()
            self._waiting.append(running)
            self._wake.notify()
        try:
            async with asyncio.timeout(self.config.request_deadline_s):
                return await asyncio.wrap_future(running.future)
        except TimeoutError:
            mode = "paused" if self._paused else "stepping"
            state = f"{len(self._running)} running, {len(self._waiting)} waiting, {mode}"
            raise DeadlineExceeded(f"tokens for {request.session_id}", self.config.request_deadline_s, state) from None

    def swap(self, bits: Mapping[str, np.ndarray], version: Version) -> Future[None]:
        """Stage new weights; the future ends when they are in. A swap staged before this one and not yet in is
        superseded.
        """
        done: Future[None] = Future()
        with self._wake:
            self._raise_if_down()
            if self._swap is not None:
                self._swap[2].set_result(None)
            self._swap = (bits, version, done)
            self._wake.notify()
        return done

    def cancel(self, session_id: str) -> None:
        """Drop a session's request, if any, and its cache."""
        with self._wake:
            self._cancelled.add(session_id)
            self._wake.notify()

    def pause(self) -> None:
        """Finish the present step and wait; sequences keep their place."""
        self._paused = True

    def resume(self) -> None:
        with self._wake:
            self._paused = False
            self._wake.notify()

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges."""
        gauges = {
            "busy_s": self.busy_s,
            "running": len(self._running),
            "waiting": len(self._waiting),
            "version": self.version,
        }
        return {**self.counters, **gauges}

    def close(self, timeout_s: float = 10.0) -> None:
        """Fail what is still running and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineExceeded("the engine's step loop to end", timeout_s)

    def _raise_if_down(self) -> None:
        if self._failure is not None:
            raise EtudeError(
                f"the engine has stopped: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure
        if self._closed:
            raise EtudeError("the engine is closed")

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while True:
                with self._wake:
                    while not self._has_work():
                        self._wake.wait()
                    if self._closed:
                        break
                started = time.perf_counter()
                self._between_steps()
                if self._running:
                    self._step()
                self.busy_s += time.perf_counter() - started
        except BaseException as error:
            self._failure = error
        self._fail_all(self._failure or EtudeError("the engine was closed"))

    def _has_work(self) -> bool:
        requests = (self._waiting or self._running) and not self._paused
        return bool(requests or self._swap or self._cancelled or self._closed)

    def _fail_all(self, error: BaseException) -> None:
        with self._wake:
            waiting = [*self._running, *self._waiting]
            self._running, self._waiting = [], deque()
            swap, self._swap = self._swap, None
        for running in waiting:
            if not running.future.done():
                running.future.set_exception(error)
        if swap is not None:
            swap[2].set_exception(error)

    def _between_steps(self) -> None:
        with self._wake:
            swap, self._swap = self._swap, None
            cancelled, self._cancelled = self._cancelled, set()
        for session in cancelled:
            self._drop_session(session)
        if swap is not None:
            self._put_in(*swap)
        while not self._paused and self._waiting and len(self._running) < self.config.max_running:
            with self._wake:
                running = self._waiting.popleft()
            if running.future.cancelled() or running.future.done():
                continue
            self._admit(running)

    def _drop_session(self, session: str) -> None:
        if (idle := self._idle.pop(session, None)) is not None:
            self.cache.release(idle)
        for running in [r for r in self._running if r.request.session_id == session]:
            self._running.remove(running)
            self.cache.release(running.sequence)
            running.future.cancel()

    def _put_in(self, bits: Mapping[str, np.ndarray], version: Version, done: Future[None]) -> None:
        try:
            load_bits(self.decoder, bits)
        except EtudeError as error:  # nothing was changed; whoever staged it must know, the engine goes on
            done.set_exception(error)
            return
        self.version = version
        self.counters["swaps"] += 1
        self.counters["in_flight_swaps"] += bool(self._running)
        for sequence in [*self._idle.values(), *(running.sequence for running in self._running)]:
            sequence.prefix_id = None  # from here on its pages mix versions
        done.set_result(None)

    def _admit(self, running: Running) -> None:
        """Take up the session's own cache, or else the longest prefix anyone has left."""
        previous = self._idle.pop(running.request.session_id, None)
        prompt = running.sequence.token_ids
        if (
            previous is not None
            and previous.computed < len(prompt)
            and prompt[: previous.computed] == previous.token_ids[: previous.computed]
        ):
            previous.token_ids = prompt
            running.sequence = previous
            self.counters["session_cache_tokens"] += previous.computed
        else:
            if previous is not None:
                self.cache.release(previous)
            self.counters["prefix_hit_tokens"] += self.cache.adopt_prefix(running.sequence, self.version)
        self._running.append(running)

    def _step(self) -> None:
        singles, chunks = self._pack()
        if not singles and not chunks:
            return
        batch = singles + [running for running, _ in chunks]
        attention = PagedAttention(self.cache, [r.sequence for r in singles], [(r.sequence, n) for r, n in chunks])
        ids = [running.sequence.token_ids[-1] for running in singles]
        for running, count in chunks:
            ids += running.sequence.token_ids[running.sequence.computed : running.sequence.computed + count]
        with torch.inference_mode():
            output = self.decoder(torch.tensor(ids), attention.positions, attention)
            self.cache.routes[attention.page_of, attention.offset_of] = output.routing.experts_NLK.numpy()
            counts = [1] * len(singles) + [count for _, count in chunks]
            last_rows = np.cumsum(counts) - 1
            self._advance(batch, counts, output.hidden_ND, last_rows)
        self.counters["steps"] += 1
        self.counters["decode_tokens"] += len(singles)
        self.counters["prefill_tokens"] += len(ids) - len(singles)

    def _pack(self) -> tuple[list[Running], list[tuple[Running, int]]]:
        """Who computes what in this step. Makes room for every token, preempting the youngest when there is none."""
        budget = self.config.step_tokens
        singles: list[Running] = []
        chunks: list[tuple[Running, int]] = []
        preempted: set[Running] = set()
        for running in sorted(self._running, key=lambda r: r.to_compute != 1):  # decode rows first; the sort is stable
            count = min(running.to_compute, budget)
            if count == 0 or running in preempted:
                continue
            preempted |= self._make_room(running, running.sequence.computed + count)
            if running in preempted:
                continue
            budget -= count
            if count == 1 and running.to_compute == 1:
                singles.append(running)
            else:
                chunks.append((running, count))
        return [r for r in singles if r not in preempted], [(r, n) for r, n in chunks if r not in preempted]

    def _make_room(self, running: Running, length: int) -> set[Running]:
        """Pages for the first `length` tokens; returns whom that has cost theirs, `running` itself perhaps among
        them.
        """
        preempted: set[Running] = set()
        while True:
            try:
                self.cache.reserve(running.sequence, length)
                return preempted
            except OutOfPages:
                if self._idle:
                    _, idle = self._idle.popitem(last=False)
                    self.cache.release(idle)
                    self.counters["sessions_evicted"] += 1
                    continue
                victim = self._running[-1]
                self._running.remove(victim)
                self.cache.release(victim.sequence)  # recomputed from its tokens when it comes up again
                with self._wake:
                    self._waiting.appendleft(victim)
                self.counters["preemptions"] += 1
                preempted.add(victim)
                if victim is running:
                    return preempted

    def _advance(self, batch: list[Running], counts: list[int], hidden: torch.Tensor, last_rows: np.ndarray) -> None:
        """Count what was computed, and sample for every sequence that has caught up with its tokens."""
        for running, count in zip(batch, counts, strict=True):
            running.sequence.computed += count
            self.cache.share_full_pages(running.sequence)
        ready = [(running, row) for running, row in zip(batch, last_rows, strict=True) if running.to_compute == 0]
        if not ready:
            return
        logits = self.decoder.logits(hidden[torch.tensor([row for _, row in ready])])
        tokens, logprobs = sample_rows(
            logits,
            [running.request.temperature for running, _ in ready],
            [uniform(running.seed, len(running.sequence.token_ids)) for running, _ in ready],
        )
        for (running, _), token, logprob in zip(ready, tokens, logprobs, strict=True):
            self._append(running, token, logprob)

    def _append(self, running: Running, token: int, logprob: float) -> None:
        running.sampled.append(token)
        running.logprobs.append(logprob)
        running.versions.append(self.version)
        running.sequence.token_ids.append(token)
        if token in running.request.stop_ids:
            self._finish(running, stopped=True)
        elif len(running.sampled) >= running.request.max_tokens:
            self._finish(running, stopped=False)

    def _finish(self, running: Running, stopped: bool) -> None:
        completion = Completion(
            token_ids=tuple(running.sampled),
            logprobs=tuple(running.logprobs),
            versions=tuple(running.versions),
            finish="stop" if stopped else "length",
            routed_experts=self.cache.routes_of(running.sequence, running.sequence.computed),
        )
        self._running.remove(running)
        self._idle[running.request.session_id] = running.sequence
        if not running.future.cancelled():
            running.future.set_result(completion)

"""The in-process engine: continuous batching over the shared decoder, where that computes.

Owns the step loop, in a thread of its own: admit, pack (decode rows first, then prefill chunks), one forward, sample,
deliver. New weights are put in between two steps; running sequences go on with the cache they have, and every token is
marked with the version that sampled it. A session's cache is kept between its turns, until the pages are needed. What
several sequences are to read is computed by one, and taken up by the others. Talks to: kv_cache (pages), attention,
sampling. Never touches files or the network.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Literal

import numpy as np
import torch

from etude.engine.attention import PagedAttention
from etude.engine.cache_size import cache_pages
from etude.engine.config import EngineConfig
from etude.engine.forward import Forward, fits
from etude.engine.kv_cache import CachedSequence, OutOfPages, PagedCache, PrefixKey
from etude.engine.running import Constraint, OnToken, RunningRequest, SampledToken, check, reject, resolve
from etude.engine.sampling import chosen_of, distribution, draw, forbid
from etude.engine.served import load_served
from etude.engine.speculation import Speculation
from etude.errors import DeadlineExceeded, EtudeError
from etude.harness.sampler import NO_SESSION, Completion, SampleRequest
from etude.models.decoder import Decoder
from etude.records import BASE_VERSION, Version


class TorchEngine:
    """Implements `harness.sampler.Sampler`. Safe to call from any thread or event loop."""

    def __init__(self, decoder: Decoder, config: EngineConfig, version: Version = BASE_VERSION) -> None:
        self.decoder, self.config, self.version = decoder, config, version
        self.device = decoder.placement.device
        self._on_arrays = Forward(decoder)
        self.cache = PagedCache(decoder.config, cache_pages(decoder, config.cache_tokens), decoder.placement)
        self.counters: Counter[str] = Counter()
        self._speculation = Speculation(decoder, self.cache, config, self.counters)
        self._speculates = bool(config.lookup_tokens or config.further_tokens)
        self.busy_s = self.work_s = 0.0
        self._work_since: float | None = None
        self._waiting: deque[RunningRequest] = deque()
        self._running: list[RunningRequest] = []
        self._idle: OrderedDict[str, CachedSequence] = OrderedDict()  # sessions between turns, least recent first
        self._cancelled: list[tuple[str, list[RunningRequest]]] = []
        self._abandoned: list[RunningRequest] = []
        self._swap: tuple[Mapping[str, np.ndarray], Version, int, Future[float]] | None = None
        self._prefixes: int = version
        self._paused: Literal["keep", "wait"] | None = None
        self._resting: list[Future[None]] = []
        self._closed = False
        self._failure: BaseException | None = None
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    # --- called from anywhere -----------------------------------------------------------------------------------------

    @property
    def max_context(self) -> int:
        """Most tokens that prompt and completion can have together."""
        return min(self.decoder.config.max_context, self.cache.positions)

    def check(self, request: SampleRequest) -> None:
        """Raises ContextOverflow or InvalidRequest for what could never be carried out; nobody else must suffer it."""
        check(request, self.decoder.config.vocab_size, self.max_context)

    async def sample(
        self, request: SampleRequest, on_token: OnToken | None = None, constraint: Constraint | None = None
    ) -> Completion:
        """Raises ContextOverflow, InvalidRequest, DeadlineExceeded, or the error that stopped the engine.

        Whoever is cancelled while waiting leaves nothing behind: the request is dropped and its pages are given back.
        """
        self.check(request)
        seed = request.seed if request.seed is not None else int.from_bytes(np.random.bytes(6), "big")
        sequence = CachedSequence(list(request.prompt_ids))
        running = RunningRequest(request, sequence, Future(), seed, on_token, constraint)
        with self._wake:
            self._raise_if_down()
            self._waiting.append(running)
            self._work_since = self._work_since or time.perf_counter()
            self._wake.notify()
        try:
            return await running.ended(self.config.silence_s)
        except TimeoutError:
            mode = "paused" if self._paused else "stepping"
            state = f"{len(self._running)} running, {len(self._waiting)} waiting, {mode}"
            what = f"tokens for {request.session_id or 'a request'}"
            raise DeadlineExceeded(what, self.config.silence_s, state) from None
        finally:
            if running.future.cancel():  # it had not ended
                with self._wake:
                    self._abandoned.append(running)
                    self._wake.notify()

    def swap(self, bits: Mapping[str, np.ndarray], version: Version, line: int = 0) -> Future[float]:
        """Stage new weights; the future ends when they are in, with the seconds that took between two steps. A swap
        staged before this one and not yet in is superseded: 0.

        `line` tells versions of another origin apart that have the same number: the prefix cache must not mix them.
        """
        done: Future[float] = Future()
        with self._wake:
            self._raise_if_down()
            if self._swap is not None:
                resolve(self._swap[-1], 0.0)
            self._swap = (bits, version, line, done)
            self._wake.notify()
        return done

    def cancel(self, session_id: str) -> None:
        """Drop the requests a session has now, and its cache; what it asks for after this is another matter."""
        with self._wake:
            present = [each for each in (*self._running, *self._waiting) if each.request.session_id == session_id]
            self._cancelled.append((session_id, present))
            self._wake.notify()

    def pause(self, mode: Literal["keep", "wait"] = "keep") -> Future[None]:
        """Come to rest: after the present step, with sequences keeping their place ("keep"), or when what runs has
        finished ("wait"). Requests that wait go on waiting. The future ends when the engine is at rest, or resumed.
        """
        rested: Future[None] = Future()
        with self._wake:
            self._raise_if_down()
            self._paused = mode
            self._resting.append(rested)
            self._wake.notify()
        return rested

    def resume(self) -> None:
        """Go on after a pause."""
        with self._wake:
            self._paused = None
            rested, self._resting = self._resting, []
            self._wake.notify()
        for each in rested:
            resolve(each, None)

    @property
    def paused(self) -> bool:
        return self._paused is not None

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges."""
        gauges = {
            "busy_s": self.busy_s,
            "work_s": self.work_s + (time.perf_counter() - since if (since := self._work_since) else 0.0),
            "running": len(self._running),
            "waiting": len(self._waiting),
            "version": self.version,
            **self.cache.gauges(),
            "sessions_idle": len(self._idle),
        }
        return {**self.counters, **gauges}

    def close(self, timeout_s: float = 60.0) -> None:
        """Fail what is still running and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineExceeded("the engine's step loop to end", timeout_s)

    def raise_if_down(self) -> None:
        """Raises the error that stopped the engine, if it has stopped."""
        with self._wake:
            self._raise_if_down()

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
                if self._running and self._paused != "keep":
                    self._step()
                self.busy_s += time.perf_counter() - started
                self._count_work()
        except BaseException as error:
            self._failure = error
        self._fail_all(self._failure or EtudeError("the engine was closed"))

    def _count_work(self) -> None:
        """Requests were there from the first one's arrival until there is none: time that could have been busy."""
        with self._wake:
            if self._work_since is not None and not self._running and not self._waiting:
                self.work_s += time.perf_counter() - self._work_since
                self._work_since = None

    def _has_work(self) -> bool:
        requests = (self._waiting and not self._paused) or (self._running and self._paused != "keep")
        asked = self._swap or self._cancelled or self._abandoned or self._resting
        return bool(requests or asked or self._closed)

    def _fail_all(self, error: BaseException) -> None:
        with self._wake:
            waiting = [*self._running, *self._waiting]
            self._running, self._waiting = [], deque()
            swap, self._swap = self._swap, None
            rested, self._resting = self._resting, []
        for running in waiting:
            reject(running.future, error)
        for future in rested:
            reject(future, error)
        if swap is not None:
            reject(swap[-1], error)

    def _between_steps(self) -> None:
        with self._wake:
            swap, self._swap = self._swap, None
            cancelled, self._cancelled = self._cancelled, []
            abandoned, self._abandoned = self._abandoned, []
        for session, requests in cancelled:
            self._drop_session(session, requests)
        for running in abandoned:
            self._drop(running)
        if swap is not None:
            self._put_in(*swap)
        while not self._paused and self._waiting and len(self._running) < self.config.max_running:
            with self._wake:  # at every moment a request is where an error of the engine finds it
                running = self._waiting.popleft()
                self._running.append(running)
            self._admit(running)
        self._rest()

    def _rest(self) -> None:
        """Tell those who asked for a pause that it has come."""
        with self._wake:
            if not self._paused or (self._paused == "wait" and self._running):
                return
            rested, self._resting = self._resting, []
        for each in rested:
            resolve(each, None)

    def _drop_session(self, session: str, requests: list[RunningRequest]) -> None:
        if (idle := self._idle.pop(session, None)) is not None:
            self.cache.release(idle)
        for running in requests:
            running.future.cancel()
            self._drop(running)

    def _drop(self, running: RunningRequest) -> None:
        """Take a request out, wherever it is; one that has meanwhile ended is nowhere."""
        with self._wake:
            place = next((each for each in (self._running, self._waiting) if running in each), None)
            if place is None:
                return
            place.remove(running)
        self.counters["cancelled"] += 1
        self.cache.release(running.sequence)

    def _put_in(self, bits: Mapping[str, np.ndarray], version: Version, line: int, done: Future[float]) -> None:
        started = time.perf_counter()
        try:
            load_served(self.decoder, bits)
        except Exception as error:
            reject(done, error)
            if isinstance(error, EtudeError):  # nothing was changed; the engine goes on
                return
            raise
        self.version, self._prefixes = version, version + (line << 32)
        self.counters["swaps"] += 1
        self.counters["in_flight_swaps"] += bool(self._running)
        for sequence in [*self._idle.values(), *(running.sequence for running in self._running)]:
            if self.config.in_flight == "recompute" or not sequence.computed:
                self.counters["recomputed_tokens"] += sequence.computed
                self.cache.forget(sequence)
                self.cache.begin(sequence, self._prefixes)
            else:
                sequence.prefix_id = None  # from here on its pages mix versions
        resolve(done, time.perf_counter() - started)

    def _admit(self, running: RunningRequest) -> None:
        """Go on with the session's own cache, or with none: what else there is, is looked up in each step."""
        previous = self._idle.pop(running.request.session_id, None)
        prompt = running.sequence.token_ids
        scored = running.request.prompt_logprobs is not None
        if (
            previous is not None
            and not scored
            and previous.known < len(prompt)
            and prompt[: previous.known] == previous.token_ids[: previous.known]
        ):
            previous.token_ids = prompt
            running.sequence = previous
            self.counters["session_cache_tokens"] += previous.computed
        else:
            if previous is not None:
                self.cache.release(previous)
            self.cache.begin(running.sequence, self._prefixes)

    def _step(self) -> None:
        batch = self._pack()
        if not batch:
            return
        attention = PagedAttention(self.cache, [(running.sequence, count) for running, count in batch])
        ids: list[int] = []
        for running, count in batch:
            computed = running.sequence.computed
            ids += running.sequence.token_ids[computed : computed + count]
            ids += running.proposed
        decoded = [count for running, count in batch if running.to_compute == 1]
        starts = [running.sequence.computed for running, _ in batch]
        with torch.inference_mode():
            hidden_ND, routes_NLK = self._forward(ids, attention)
            self.cache.routes[attention.page_of, attention.offset_of] = routes_NLK
            self._advance(batch, hidden_ND)
            if self.config.further_tokens:
                self._speculation.follow(batch, starts, hidden_ND)
        self.counters["steps"] += 1
        self.counters["decode_tokens"] += len(decoded)
        self.counters["prefill_tokens"] += len(ids) - sum(decoded)

    def _forward(self, ids: list[int], attention: PagedAttention) -> tuple[torch.Tensor, np.ndarray]:
        """Hidden states [N, D] and routes [N, L, K]."""
        if fits(self.decoder):
            self.counters["array_steps"] += 1
            return self._on_arrays(ids, attention)
        output = self.decoder(torch.tensor(ids, device=self.device), attention.positions, attention)
        return output.hidden_ND, output.routing.experts_NLK.cpu().numpy()

    def _pack(self) -> list[tuple[RunningRequest, int]]:
        """Who computes how many tokens in this step. A page that several lack is computed by the first of them, and the
        others wait for it. Makes room for each: where there is none, the youngest waits.
        """
        budget = self.config.step_tokens
        batch: list[tuple[RunningRequest, int]] = []
        preempted: set[RunningRequest] = set()
        under_way: set[PrefixKey | None] = set()
        for running in sorted(self._running, key=lambda r: r.to_compute != 1):  # decode rows first; the sort is stable
            running.proposed, running.proposals = [], []
            if running in preempted:
                continue
            page = self._look_up(running)
            if page is not None and page in under_way:
                running.moved_at = time.monotonic()  # what it waits for is computed now
                self.counters["prefix_waits"] += 1
                continue
            count = min(running.to_compute, budget)
            if count == 0:
                continue
            if count == running.to_compute == 1 and self._speculates:
                running.proposed = self._speculation.propose(running, len(self._running), budget - 1)
                count += len(running.proposed)
            preempted |= self._make_room(running, running.sequence.computed + count)
            if running not in preempted:
                budget -= count
                batch.append((running, count))
                under_way.add(page)
                if running.cached is None:
                    running.cached = running.sequence.computed
        return [(running, count) for running, count in batch if running not in preempted]

    def _look_up(self, running: RunningRequest) -> PrefixKey | None:
        """Take up pages that others have computed meanwhile; returns the key of the next, which somebody has to.
        Whoever wants its prompt scored computes all of it, and nobody waits for that.
        """
        if running.request.prompt_logprobs is not None:
            return None
        self.counters["prefix_hit_tokens"] += self.cache.adopt(running.sequence)
        return self.cache.next_page(running.sequence)

    def _make_room(self, running: RunningRequest, length: int) -> set[RunningRequest]:
        """Pages for the first `length` tokens; returns whom that has cost theirs, `running` itself perhaps among
        them.
        """
        preempted: set[RunningRequest] = set()
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
                self.cache.forget(victim.sequence)  # recomputed from its tokens when it comes up again
                with self._wake:
                    self._running.remove(victim)
                    self._waiting.appendleft(victim)
                self.counters["preemptions"] += 1
                preempted.add(victim)
                if victim is running:
                    return preempted

    def _advance(self, batch: list[tuple[RunningRequest, int]], hidden_ND: torch.Tensor) -> None:
        """Count what was computed, and sample for every sequence that has caught up with its tokens."""
        ready: list[RunningRequest] = []
        rows: list[int] = []
        end, moved_at = 0, time.monotonic()
        for running, count in batch:
            end += count
            if running.request.prompt_logprobs is not None:
                self.counters["scored_tokens"] += running.score(hidden_ND[end - count : end], self.decoder.logits)
            running.sequence.computed += count - len(running.proposed)
            running.moved_at = moved_at
            self.cache.share_full_pages(running.sequence)
            if running.to_compute == 0:
                ready.append(running)
                rows += range(end - len(running.proposed) - 1, end)
        if ready:
            said_RD = hidden_ND if len(rows) == len(hidden_ND) else hidden_ND[torch.tensor(rows, device=self.device)]
            self._sample(ready, self.decoder.logits(said_RD))

    def _sample(self, ready: list[RunningRequest], logits_RV: torch.Tensor) -> None:
        """Draw a token at each sequence's end, and after each token of its guess."""
        draws = [(running, i) for running in ready for i in range(1 + len(running.proposed))]
        allowed = {row: r.constraint.allowed() for row, (r, _) in enumerate(draws) if r.constraint is not None}
        if allowed:
            logits_RV = forbid(logits_RV, allowed)
            self.counters["constrained_tokens"] += len(allowed)
        temperatures = [running.request.temperature for running, _ in draws]
        logprobs_RV = distribution(logits_RV, temperatures, [running.cut for running, _ in draws])
        uniforms = [running.uniform_for(i) for running, i in draws]
        tokens = draw(logprobs_RV, temperatures, uniforms, self.decoder.kernels.on_host)
        chosen = chosen_of(logprobs_RV, tokens)
        row = 0
        for running in ready:
            count = 1 + len(running.proposed)
            self._take(running, tokens[row : row + count], chosen[row : row + count], logprobs_RV, row)
            row += count

    def _take(
        self, running: RunningRequest, tokens: list[int], logprobs: list[float], logprobs_RV: torch.Tensor, row: int
    ) -> None:
        """Append what was drawn, as far as the guess was right. The distributions it was drawn from begin at `row`."""
        sequence, right = running.sequence, 0
        for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            self.counters["cut_tokens"] += running.is_cut
            sampled = SampledToken(token, logprob, self.version)
            if running.wants_more:
                sampled = running.with_details(sampled, logprobs_RV[row + i])
            goes_on = self._append(running, sampled)
            if not goes_on or i == len(running.proposed) or token != running.proposed[i]:
                break
            sequence.computed += 1  # it was computed already, as a guess
            self.cache.share_full_pages(sequence)
            right += 1
        self._speculation.learn(running, right)
        self.counters["decode_tokens"] += right

    def _append(self, running: RunningRequest, sampled: SampledToken) -> bool:
        """Returns whether the request goes on."""
        running.sampled.append(sampled)
        running.sequence.token_ids.append(sampled.token)
        stopped = sampled.token in running.request.stop_ids
        try:
            if running.constraint is not None:
                running.constraint.take(sampled.token)
            if running.on_token is not None:
                stopped |= running.on_token(sampled)
        except Exception as error:  # the asker's fault: that request ends, the engine goes on
            reject(running.future, error)
            self._drop(running)
            return False
        if stopped or len(running.sampled) >= running.request.max_tokens:
            self._finish(running, stopped)
            return False
        return True

    def _finish(self, running: RunningRequest, stopped: bool) -> None:
        completion = running.completion(stopped, self.cache.routes_of(running.sequence, running.sequence.computed))
        session = running.request.session_id
        if (before := self._idle.pop(session, None)) is not None:
            self.cache.release(before)  # two requests of one session ran side by side; the later one's cache is kept
        if session == NO_SESSION:
            self.cache.release(running.sequence)
        else:
            self._idle[session] = running.sequence
        self._running.remove(running)
        resolve(running.future, completion)

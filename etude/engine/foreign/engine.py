"""An engine that is not ours, behind the engine seam: a vLLM or SGLang server.

Owns one connection, in a thread of its own with an event loop: requests, and updates one after another. New weights
are written as a checkpoint that the server sees, served, and checked against our own forward; until the verdict no
result is handed out, and after a bad one every request fails with it until an update has passed. Talks to: the dialect
of the server's kind, and `check`. Never starts or stops a server.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import numpy as np

from etude.deadlines import scaled
from etude.engine.foreign.check import WeightCheck
from etude.engine.foreign.config import SglangConfig, VllmConfig
from etude.engine.foreign.dialect import Dialect, ForeignCompletion
from etude.engine.foreign.handover import Handover
from etude.engine.foreign.http import ServerConnection, ServerRefused, read_token
from etude.engine.foreign.routes import RouteShape, decode_routes
from etude.engine.foreign.sglang import Sglang
from etude.engine.foreign.vllm import Vllm
from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest, WeightError
from etude.harness.sampler import NO_ROUTES, Completion, SampleRequest
from etude.models.decoder import Decoder
from etude.records import BASE_VERSION, Version

T = TypeVar("T")
_AGAIN_S = 0.05


class ForeignEngine:
    """Implements `engine.base.Engine` over one server. `decoder` is what its weights are checked with."""

    def __init__(self, config: VllmConfig | SglangConfig, decoder: Decoder, url: str) -> None:
        self.config, self.version = config, BASE_VERSION
        self.counters: Counter[str] = Counter()
        self._dialect: Dialect = Vllm(config) if isinstance(config, VllmConfig) else Sglang(config)
        self._wire = ServerConnection(url, read_token(config.token_file), self._dialect.hints)
        self._check = WeightCheck(decoder, config.probe_tokens, config.tolerance)
        self._handover = Handover(config.weights_dir, decoder)
        shape = decoder.config
        self._context = shape.max_context
        self._routes = RouteShape(shape.layers, shape.moe_layers, shape.experts, shape.experts_per_token)
        self._running: dict[str, set[asyncio.Task[Any]]] = {}
        self._busy_s = self._busy_since = 0.0
        self._figures = {"check_mean_abs_dlogp": 0.0, "check_max_abs_dlogp": 0.0}
        self._failure: EtudeError | None = None
        self._newest_swap = 0
        self._updating, self._settled = asyncio.Lock(), asyncio.Event()
        self._settled.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"engine at {url}", daemon=True)
        self._thread.start()

    # --- called from anywhere -----------------------------------------------------------------------------------------

    async def sample(self, request: SampleRequest) -> Completion:
        """Raises ContextOverflow, InvalidRequest, DeadlineExceeded, ServerRefused, or a WeightError."""
        if len(request.prompt_ids) + request.max_tokens > self._context:
            wanted = f"{len(request.prompt_ids)} prompt and {request.max_tokens} new tokens"
            raise ContextOverflow(f"{request.session_id}: {wanted} do not fit a context of {self._context}")
        if request.sampling_mask or request.prompt_logprobs is not None:
            raise InvalidRequest(
                f"{request.session_id}: sampling masks and log-probabilities of prompts come from Etude's own engine "
                f"only; {self._wire.url} is another"
            )
        return await asyncio.wrap_future(self._submit(self._sample(request)))

    def swap(self, bits: Mapping[str, np.ndarray], version: Version) -> Future[float]:
        self._newest_swap += 1
        return self._submit(self._update(bits, version, self._newest_swap))

    def cancel(self, session_id: str) -> None:
        """The connections of the session's requests are closed; that ends them at the server."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._running.get(session_id, ())])

    def raise_if_down(self) -> None:
        if self._loop.is_closed():
            raise EtudeError("the engine is closed")

    def stats(self) -> dict[str, float]:
        running = sum(map(len, list(self._running.values())))
        gauges = {"busy_s": self._busy_s, "running": running, "version": self.version, "retries": self._wire.retries}
        return {**self.counters, **self._figures, **gauges}

    def close(self, timeout_s: float = 60.0) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise DeadlineExceeded("a foreign engine's thread to end", timeout_s)
        self._loop.close()

    def _submit(self, what: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            self.raise_if_down()
        except EtudeError:
            what.close()
            raise
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    # --- the engine's thread: requests --------------------------------------------------------------------------------

    async def _sample(self, request: SampleRequest) -> Completion:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        if not self._running:
            self._busy_since = time.perf_counter()
        own = self._running.setdefault(request.session_id, set())
        own.add(task)
        try:
            async with asyncio.timeout(scaled(self.config.request_s)):
                return await self._sampled(request)
        except TimeoutError:
            state = "an update is under way" if not self._settled.is_set() else "none is under way"
            hint = f"{state}, {sum(map(len, self._running.values()))} running"
            raise DeadlineExceeded(
                f"{self._wire.url} to sample for {request.session_id}", scaled(self.config.request_s), hint
            ) from None
        finally:
            own.discard(task)
            if not own:
                self._running.pop(request.session_id, None)
            if not self._running:
                self._busy_s += time.perf_counter() - self._busy_since

    async def _sampled(self, request: SampleRequest) -> Completion:
        while True:
            await self._settled.wait()
            self._raise_if_wrong()
            version = self.version
            answer = await self._dialect.generate(self._wire, request, secrets.token_hex(12), f"version {version}")
            await self._settled.wait()  # weights that came meanwhile are judged before anything of theirs is used
            self._raise_if_wrong()
            if answer.finish != "abort":
                break
            self.counters["sampled_anew"] += 1
            await asyncio.sleep(_AGAIN_S)
        self.counters["requests"] += 1
        self.counters["decode_tokens"] += len(answer.token_ids)
        self.counters["prompt_tokens"] += len(request.prompt_ids)
        self.counters["prefix_hit_tokens"] += answer.cached_tokens
        return self._completion(request, answer, version)

    def _raise_if_wrong(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _completion(self, request: SampleRequest, answer: ForeignCompletion, version: Version) -> Completion:
        count = len(answer.token_ids)
        if count == 0 or len(answer.logprobs) != count or answer.finish not in ("stop", "length"):
            raise ServerRefused(
                f"{self._wire.url} was to sample for {request.session_id} and ended with {answer.finish!r} after "
                f"{count} tokens and {len(answer.logprobs)} log-probabilities"
            )
        stopped = answer.token_ids[-1] in request.stop_ids
        if answer.finish == "stop" and not stopped:
            raise ServerRefused(
                f"{self._wire.url} ended at token {answer.token_ids[-1]}, which is no stop token of this session: its "
                "generation_config.json names other ends of text than the tokenizer of model.path"
            )
        return Completion(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            versions=versions_of(answer, version),
            finish="stop" if stopped else "length",
            routed_experts=self._routes_of(request, answer),
            cached_tokens=answer.cached_tokens,
        )

    def _routes_of(self, request: SampleRequest, answer: ForeignCompletion) -> Any:
        if not self.config.routes:
            return NO_ROUTES
        if answer.routes is None:
            raise ServerRefused(
                f"{self._wire.url} returns no routes: start it with --enable-return-routed-experts, or set "
                "engine.routes = false (and trainer.router_replay = false)"
            )
        positions = len(request.prompt_ids) + len(answer.token_ids) - 1
        routes = decode_routes(answer.routes, self._routes, positions)
        self.counters["routed_positions"] += positions
        return routes

    # --- the engine's thread: updates ---------------------------------------------------------------------------------

    async def _update(self, bits: Mapping[str, np.ndarray], version: Version, number: int) -> float:
        """Seconds in which no request could begin."""
        async with self._updating:
            if number < self._newest_swap:
                return 0.0  # superseded
            started = time.perf_counter()
            self._settled.clear()
            try:
                async with asyncio.timeout(scaled(self.config.update_s)):
                    await self._serve(bits, version)
                self.version, self._failure = version, None
                return time.perf_counter() - started
            except TimeoutError:
                self._failure = DeadlineExceeded(
                    f"{self._wire.url} to serve version {version} and be checked", scaled(self.config.update_s)
                )
                raise self._failure from None
            except (EtudeError, OSError) as error:
                self._check.forget()
                self._failure = error if isinstance(error, EtudeError) else WeightError(f"version {version}: {error}")
                raise self._failure from None
            finally:
                self._settled.set()

    async def _serve(self, bits: Mapping[str, np.ndarray], version: Version) -> None:
        """Hand over, have it served, check it."""
        self.counters["in_flight_swaps"] += bool(self._running)
        await asyncio.to_thread(self._check.load, bits)
        checkpoint = await asyncio.to_thread(self._handover.write, bits, version)
        await self._dialect.update(self._wire, checkpoint, version)
        answer = await self._dialect.generate(
            self._wire, self._check.request, secrets.token_hex(12), secrets.token_hex(8), score_prompt=True
        )
        verdict = await asyncio.to_thread(self._check.compare, answer, version, self._wire.url)
        self.counters["swaps"] += 1
        self.counters["checks"] += 1
        self.counters["checks_of_the_step"] += verdict.taken is not None
        self._figures = {"check_mean_abs_dlogp": verdict.mean_abs, "check_max_abs_dlogp": verdict.max_abs}
        await asyncio.to_thread(self._handover.keep_only, checkpoint)

    async def _stop(self) -> None:
        here = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wire.close()


def versions_of(answer: ForeignCompletion, asked_at: Version) -> tuple[int, ...]:
    """The weights behind each token. Without a word from the server it is those of when it was asked, the oldest that
    it can be: staleness then errs on the side of dropping.
    """
    versions = [int(asked_at)] * len(answer.token_ids)
    for version, start, end in answer.spans:
        versions[start:end] = [int(version)] * (min(end, len(versions)) - start)
    return tuple(versions)

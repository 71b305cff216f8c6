"""One machine's sandboxes, as a server keeps them: made by policy, counted, given an end, and accounted for.

Owns the backends by name, the sandboxes and snapshots alive on them, and when each is over. Every step of a sandbox's
life is an event (see `accounts`), every sandbox is in the journal from its birth to its end, and what a killed server
left is removed when the next one opens its backends and reported as lost. Used by the HTTP server and by node agents;
never speaks HTTP, and never gives a weaker backend than was asked for.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from etude.environments.accounts import SANDBOX, Telemetry
from etude.environments.backends import open_backend
from etude.environments.base import Backend, Capabilities, Sandbox, SandboxSpec, describe_offers, find_offer
from etude.environments.journal import Journal
from etude.environments.leftovers import leaks
from etude.environments.lives import LiveSandbox, LiveSnapshot, NodeConfig, Teardown, Timers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.remote import default_state_dir
from etude.environments.requests import Requests
from etude.environments.wire import SPOILED, Isolation, ServerError, gone
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, SandboxError, SandboxSpoiled
from etude.records import InfraFailed

_PROBE_DEADLINE_S = 5.0
_LEAKS_LOOKED_FOR = 10_000


class Node:
    """See the module. Opened, used and closed on one event loop."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        if len({backend.kind for backend in config.backends}) < len(config.backends):
            raise ConfigError(
                "backends: two of one kind cannot be told apart by name; run another server for the second"
            )
        directory = config.state_dir or default_state_dir()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.journal = Journal(directory, config.keep_s, config.keep_mb)
        self.requests = Requests(self.journal)
        self.accounts = Telemetry(directory / "events.jsonl", self._count_leaks, self._egress)
        self.backends: dict[str, Backend] = {}
        self._live: dict[str, LiveSandbox] = {}
        self._kept: dict[str, LiveSnapshot] = {}
        self._ended: deque[str] = deque(maxlen=_LEAKS_LOOKED_FOR)
        self._timers = Timers()
        self._starting = 0
        self._start_s = 0.1
        self._draining = False
        self._log = structlog.get_logger("environments")
        self.watch: Callable[[str, str, str], None] = lambda name, state, why: None
        """Told of every sandbox that is gone: its id, what later users are told, and why."""
        self.lost: dict[str, InfraFailed] = {}
        """What a killed server had alive, by sandbox id: gone, and worth trying again."""
        try:
            for backend in config.backends:  # opening one removes what killed owners left of it
                opened = open_backend(backend)
                self.backends[opened.capabilities.name] = opened
        except BaseException:
            self.journal.close()
            raise
        for past in self.journal.recover():
            self.lost[past.id] = InfraFailed(f"sandbox {past.id}: {past.why}", retryable=True)
            self.accounts.step("failed", past.id, why=past.why, retryable=True, **past.facts)

    @property
    def capabilities(self) -> list[Capabilities]:
        return [backend.capabilities for backend in self.backends.values()]

    def sandboxes(self) -> list[LiveSandbox]:
        """Those there, oldest first, with those that are ending."""
        return list(self._live.values())

    def snapshots(self) -> list[LiveSnapshot]:
        return list(self._kept.values())

    def find(self, name: str, ending: bool = False) -> LiveSandbox:
        """A sandbox that is alive, or with `ending` not gone yet. Raises ServerError or SandboxSpoiled, saying how
        it ended."""
        if (live := self._live.get(name)) is not None:
            if live.ending is None or ending:
                return live
            raise ServerError(live.ending.state, f"sandbox {name} is being removed: {live.ending.why}")
        past = self.journal.entry(name)
        if past is None:
            raise ServerError("not_found", f"there is no sandbox {name} here, or it ended long ago")
        raise gone(past.state, f"sandbox {name} is gone: {past.why}")

    # life ---------------------------------------------------------------------------------------------------------

    async def create(
        self, spec: SandboxSpec, backend: str | None = None, isolation: Isolation | None = None
    ) -> LiveSandbox:
        """Start a sandbox. Raises ConfigError where no backend here is what was asked for, ServerError when busy."""
        base = self._kept.get(spec.base.id) if spec.base else None
        if spec.base is not None and base is None:
            raise _no_snapshot(spec.base.id)
        name = self._pick(backend or (base.backend if base else None), isolation)
        if base is not None:
            self._renew(base)
            if base.backend != name:
                raise ConfigError(f"base: snapshot {base.id} belongs to backend {base.backend}, not to {name}")
        with self._queued(1), self.accounts.timed("create", name, spec.image) as span:
            box = await self.backends[name].create(replace(spec, base=base.snapshot if base else None))
            (live,) = await self._adopt([box], name, replace(spec, files={}), "created")
            span.set_attribute(SANDBOX, live.id)
        return live

    async def fork(self, live: LiveSandbox, n: int) -> list[LiveSandbox]:
        with self._queued(n), self.accounts.timed("fork", live.backend, live.spec.image, live.id):
            boxes = await live.sandbox.fork(n)
        return await self._adopt(boxes, live.backend, live.spec, "forked", parent=live.id)

    async def snapshot(self, live: LiveSandbox) -> LiveSnapshot:
        with self.accounts.timed("snapshot", live.backend, live.spec.image, live.id):
            inner = await live.sandbox.snapshot()
        name = f"snap-{secrets.token_hex(8)}"
        kept = self._kept[name] = LiveSnapshot(name, inner, live.backend, live.spec.image, live.id)
        self._renew(kept)
        self.accounts.step("snapshot", live.id, snapshot=name)
        return kept

    async def release(self, name: str) -> None:
        """Forget a snapshot. Raises ServerError where there is none."""
        if (kept := self._kept.pop(name, None)) is None:
            raise _no_snapshot(name)
        self._timers.stop(kept.timer)
        await self.backends[kept.backend].release(kept.snapshot)

    async def pause(self, live: LiveSandbox) -> None:
        was, live.paused = live.paused, True  # at once: where it fails half way, only resuming helps
        await live.sandbox.pause()
        if not was:
            self.accounts.step("paused", live.id)

    async def resume(self, live: LiveSandbox) -> None:
        await live.sandbox.resume()
        if live.paused:
            live.paused = False
            self.accounts.step("resumed", live.id)

    def set_ttl(self, live: LiveSandbox, ttl_s: float) -> None:
        """It ends `ttl_s` from now, whatever was said before."""
        self._timers.stop(live.timer)
        live.spec = replace(live.spec, ttl_s=self._granted(ttl_s))
        live.timer, live.expires = self._expiry(live.id, self._granted(ttl_s))

    async def destroy(self, name: str) -> None:
        """End a sandbox; fine when it has ended already, an error when there never was one.

        Raises ServerError while it cannot be removed: it is tried again until it is, and this may be asked again."""
        try:
            live = self.find(name, ending=True)
        except ServerError as error:
            if error.kind == "not_found":
                raise
            return
        except SandboxSpoiled:
            return
        await self._end(live, "destroyed", "ended", "it has been destroyed")

    @asynccontextmanager
    async def use(self, name: str, awake: bool = True) -> AsyncGenerator[LiveSandbox]:
        """A sandbox to ask something of. Where it turns out to have failed, it is ended and the error says so."""
        live = self.find(name)
        if live.paused and awake:
            raise ServerError("paused", f"sandbox {name} is paused: resume() it first")
        try:
            yield live
        except ServerError:
            raise
        except SandboxError as error:
            if live.ending is None and not live.paused and not await _answers(live.sandbox):
                with suppress(ServerError):  # it is tried again; what is asked here is what became of it
                    how = SPOILED if isinstance(error, SandboxSpoiled) else "lost"
                    await self._end(live, "failed", how, str(error))
            self.find(name)  # raises what became of it, where it is gone
            raise

    async def drain(self, timeout_s: float) -> None:
        """Refuse what is new, and let what is under way end; after `timeout_s` cut it, with an answer that says so."""
        self._draining = True
        await self.requests.drain(timeout_s)

    async def close(self) -> None:
        """End everything at once."""
        await self.drain(0)
        ending = [self._end(live, "destroyed", "lost", "the server was stopped") for live in self.sandboxes()]
        await asyncio.gather(*ending, self._timers.close(), return_exceptions=True)
        try:
            for backend in self.backends.values():
                await backend.close()
        finally:
            self.journal.close()
            self.accounts.close()

    # ----------------------------------------------------------------------------------------------------------------

    def _pick(self, backend: str | None, isolation: Isolation | None) -> str:
        offered = describe_offers(self.capabilities)
        if backend is not None and backend not in self.backends:
            raise ConfigError(f"backend: {backend!r} is not offered here, only {offered}")
        if (found := find_offer(self.capabilities, backend, isolation)) is not None:
            return found.name
        wanted = f"isolation {isolation!r}" + (f" of backend {backend!r}" if backend else "")
        raise ConfigError(
            f"isolation: {wanted} is not offered here, only {offered}, and nothing weaker is given in its place; "
            "`etude environments doctor` says what this machine can do"
        )

    @contextmanager
    def _queued(self, n: int) -> Generator[None]:
        """Count `n` starts as waiting, or refuse them when there are too many."""
        if self._draining:
            raise ServerError("draining", "this server is stopping; ask another, or try again", retry_after_s=5)
        if self._starting + n > self.config.waiting_starts:
            message = f"{self._starting} sandboxes are waiting to start, {n} more are too many; come again later"
            raise ServerError("busy", message, retry_after_s=max(1, math.ceil(self._start_s)))
        self._count_starting(n)
        began = time.monotonic()
        try:
            yield
            self._start_s += 0.1 * (time.monotonic() - began - self._start_s)
        finally:
            self._count_starting(-n)

    def _count_starting(self, n: int) -> None:
        self._starting += n
        self.accounts.waiting.set(self._starting)

    async def _adopt(
        self, boxes: Sequence[Sandbox], backend: str, spec: SandboxSpec, step: str, **facts: Any
    ) -> list[LiveSandbox]:
        """Write down what has started. Where that fails all of them are ended: nobody would know of them."""
        made: list[LiveSandbox] = []
        try:
            for box in boxes:
                made.append(self._born(box, backend, spec, step, **facts))
        except BaseException:
            await asyncio.gather(
                *(self._end(live, "failed", "lost", "it could not be written down") for live in made),
                *(box.destroy() for box in boxes[len(made) :]),
                return_exceptions=True,
            )
            raise
        return made

    def _born(self, box: Sandbox, backend: str, spec: SandboxSpec, step: str, **facts: Any) -> LiveSandbox:
        name = f"box-{secrets.token_hex(8)}"
        ttl_s = self._granted(spec.ttl_s or self.config.ttl_s)
        known = {"backend": backend, "image": spec.image, "labels": dict(spec.labels), "inner": box.id}
        self.journal.record_created(name, known)
        timer, expires = self._expiry(name, ttl_s)
        live = LiveSandbox(
            name, box, backend, replace(spec, ttl_s=ttl_s), time.time(), time.monotonic(), expires, timer
        )
        self._live[name] = live
        self.accounts.alive.labels(backend).inc()
        self.accounts.step(step, name, ttl_s=ttl_s, **known, **facts)
        return live

    def _granted(self, ttl_s: float) -> float:
        return min(ttl_s, self.config.max_ttl_s)

    def _expiry(self, name: str, ttl_s: float) -> tuple[asyncio.TimerHandle, float]:
        return self._timers.later(ttl_s, partial(self._expire, name)), time.time() + ttl_s

    async def _expire(self, name: str) -> None:
        if (live := self._live.get(name)) is not None:
            with suppress(ServerError):  # it is tried again
                await self._end(live, "expired", "expired", f"its {live.spec.ttl_s} s to live ran out")

    def _renew(self, kept: LiveSnapshot) -> None:
        self._timers.stop(kept.timer)
        kept.timer = self._timers.later(self.config.snapshot_ttl_s, partial(self.release, kept.id))

    async def _end(self, live: LiveSandbox, step: str, state: str, why: str) -> None:
        """Destroy, and write down as which `step` of its life and why; `state` is what later users are told.

        Who comes second waits for the attempt under way, or begins the next one. Raises ServerError where it fails;
        it is tried again, less and less often, until nothing is left."""
        if live.ending is None:
            live.ending = Teardown(step, state, why)
        if live.ending.attempt is None:
            self._timers.stop(live.timer)
            live.ending.attempt = asyncio.get_running_loop().create_task(self._remove(live, live.ending))
        await asyncio.shield(live.ending.attempt)

    async def _remove(self, live: LiveSandbox, ending: Teardown) -> None:
        """One attempt. The record goes last: what is not in the journal as ended is still to be looked for."""
        try:
            with self.accounts.timed("destroy", live.backend, live.spec.image, live.id):
                await live.sandbox.destroy()
            self.journal.record_ended(live.id, ending.state, ending.why)
        except (EtudeError, OSError) as error:
            ending.last_error, pause_s = str(error), ending.next_pause()
            self._log.warning(
                "not removed", sandbox=live.id, why=ending.why, trouble=ending.last_error, again_s=pause_s
            )
            live.timer = self._timers.later(pause_s, partial(self._expire, live.id))
            raise ServerError(
                "ending",
                f"sandbox {live.id} is not gone yet: {error}. It is tried again until it is; the list of sandboxes "
                "shows it as ending. If it stays, mend what this names",
            ) from None
        finally:
            ending.attempt = None
        del self._live[live.id]
        self.accounts.alive.labels(live.backend).dec()
        self._ended.append(live.sandbox.id)
        lived = round(time.monotonic() - live.since, 3)
        self.accounts.step(ending.step, live.id, why=ending.why, lived_s=lived)
        self.watch(live.id, ending.state, ending.why)

    def _egress(self) -> dict[str, Mapping[str, int]]:
        boxed = {name: each for name, each in self.backends.items() if isinstance(each, NamespaceBackend)}
        return {name: backend.egress for name, backend in boxed.items()}

    def _count_leaks(self) -> int:
        ended = set(self._ended)
        return sum(len(leaks(ended, each)) for each in self.config.backends if isinstance(each, NamespaceConfig))


def _no_snapshot(name: str) -> ServerError:
    why = "it was released, or another backend made it, or the server was restarted"
    return ServerError("not_found", f"there is no snapshot {name} here: {why}")


async def _answers(box: Sandbox) -> bool:
    """Whether it still serves: what it refused once may have been the request's own fault."""
    try:
        async with asyncio.timeout(_PROBE_DEADLINE_S):
            await box.processes()
    except (SandboxError, DeadlineExceeded, TimeoutError):
        return False
    return True

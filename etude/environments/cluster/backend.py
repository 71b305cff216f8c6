"""The `cluster` backend: sandboxes on the machines of a cluster, of the same shape as those of this process.

Owns a caller's requests: asked for, asked for again when the scheduler was killed meanwhile, given up when the caller
is cancelled or has waited too long. Each has an id that is never used twice, so that asking again is never a second
sandbox. What is done with a sandbox is in `sandbox`, and does not come by here.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from etude.environments.base import (
    Capabilities,
    SandboxSpec,
    Snapshot,
    describe_offers,
    describe_requirement,
    find_offer,
)
from etude.environments.cluster.calls import NAMESPACE, Unreachable, agent_name, call_within, scheduler_name
from etude.environments.cluster.config import ClusterConfig
from etude.environments.cluster.sandbox import ClusterSandbox
from etude.environments.cluster.service import RequestStatus
from etude.environments.far import FarBackend
from etude.environments.scheduling.ledger import State
from etude.environments.scheduling.messages import Priority, Request
from etude.environments.scheduling.scheduler import Waiting
from etude.environments.store import workspace_paths
from etude.environments.wire import ServerError
from etude.errors import ConfigError, DeadlineExceeded, Overloaded, SandboxError

_WAIT_S = 10.0
"""How long the scheduler holds a question before it says how things stand."""
_ANSWER_S = 20.0
_AGAIN_S = 0.2


class ClusterBackend(FarBackend):
    """Asks a cluster for sandboxes. Opening one waits until a machine offers what the config asks for."""

    def __init__(self, config: ClusterConfig) -> None:
        if not ray.is_initialized():
            raise ConfigError(
                "environment: kind = 'cluster' is for processes that have joined Ray; call ray.init(address=...) first"
            )
        self.config = config
        try:
            self.scheduler = ray.get_actor(scheduler_name(config.name), NAMESPACE)
        except ValueError:
            raise SandboxError(
                f"no cluster {config.name!r} runs on this Ray; start one with etude.environments.cluster.launch"
            ) from None
        super().__init__(_offered(config, self.scheduler))
        self._caller, self._numbers = secrets.token_hex(6), itertools.count(1)

    async def create(self, spec: SandboxSpec) -> ClusterSandbox:
        """Wait for one, in the queue too. Raises ServerError "lost" where it was on its way and its machine died."""
        self._check_open()
        workspace_paths(spec.files)  # what is wrong at sight need not wait in a queue to be told
        request = Request(
            id=f"{self._caller}-{next(self._numbers)}",
            tenant=self.config.tenant,
            priority=self.config.priority,
            resources=spec.resources,
            backend=self.capabilities.name,
            isolation=self.config.isolation,
            image=spec.image,
            snapshot=spec.base.id if spec.base else None,
            ttl_s=spec.ttl_s or self.config.ttl_s,
        )
        bare = SandboxSpec(image=spec.image, resources=spec.resources)
        whole = replace(spec, base=None, ttl_s=None)
        given = [] if whole == bare else [ray.put(whole)]  # what the request does not say
        try:
            standing = await self._ready(request, given)
            if self._closed:
                raise SandboxError("this backend was closed meanwhile")
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.end(request.id, "its caller gave up")))
            raise
        box = self.live[request.id] = ClusterSandbox(self, request.id, standing, spec)
        return box

    async def release(self, snapshot: Snapshot) -> None:
        self.snapshots.discard(snapshot.id)
        node = snapshot.id.partition("/")[0]
        try:
            agent = ray.get_actor(agent_name(self.config.name, node), NAMESPACE)
        except ValueError:
            return  # the machine has left, and the snapshot with it
        with suppress(Unreachable):  # its agent was killed, and the snapshot went with it
            await call_within(agent.release.remote(snapshot.id), _ANSWER_S, f"snapshot {snapshot.id} to be released")

    async def waiting(self, priority: Priority = "training", limit: int = 100) -> list[Waiting]:
        """The head of a class's queue, of all callers."""
        return await self._asked(lambda: self.scheduler.waiting.remote(priority, limit), _ANSWER_S, "the queue")

    async def figures(self) -> dict[str, float]:
        """How the cluster stands and what has happened in it, by name."""
        return await self._asked(lambda: self.scheduler.figures.remote(), _ANSWER_S, "the cluster's figures")

    # for ClusterSandbox -------------------------------------------------------------------------------------------

    async def end(self, request_id: str, why: str) -> None:
        """Tell the scheduler that nobody wants a request, or its sandbox, any more."""
        self.live.pop(request_id, None)
        await self._asked(lambda: self.scheduler.end.remote(request_id, why), _ANSWER_S, f"request {request_id} to end")

    # ----------------------------------------------------------------------------------------------------------------

    async def _ready(self, request: Request, given: list[Any]) -> RequestStatus:
        end = time.monotonic() + self.config.start_s
        while (left_s := end - time.monotonic()) > 0:
            wait_s = min(_WAIT_S, left_s)
            standing: RequestStatus = await self._asked(
                lambda wait_s=wait_s: self.scheduler.ask.remote(request, given, wait_s),
                wait_s + _ANSWER_S,
                f"the scheduler to say how request {request.id} stands",
            )
            if standing.state is State.READY:
                return standing
            if standing.state in (State.FAILED, State.ENDED):
                raise _failure(request, standing)
            if standing.state is State.REFUSED and standing.ask_again_s is None:
                raise SandboxError(standing.why)
            if standing.ask_again_s is not None:
                if standing.ask_again_s > end - time.monotonic():
                    raise Overloaded(standing.why, standing.ask_again_s)
                await asyncio.sleep(standing.ask_again_s * random.uniform(1.0, 1.5))
        line = await self._asked(lambda: self.scheduler.line.remote(request.id), _ANSWER_S, "a place in the queue")
        hint = f"number {line.position + 1} in the queue, waits {line.why}" if line else "its start was under way"
        raise DeadlineExceeded(f"a sandbox to be ready (request {request.id})", self.config.start_s, hint)

    async def _asked(self, ask: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
        """Ask the scheduler, and again for as long as it may be being restarted."""
        until = time.monotonic() + self.config.unreachable_s
        while True:
            try:
                return await call_within(ask(), seconds, what)
            except Unreachable:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_AGAIN_S * random.uniform(0.5, 1.5))


def _failure(request: Request, standing: RequestStatus) -> SandboxError:
    if standing.failure is None:
        return SandboxError(f"request {request.id} was ended: {standing.why}")
    if standing.failure.retryable:
        return ServerError("lost", standing.failure.what)
    if request.snapshot is not None:
        why = "it was released, or another backend made it, or its machine is gone"
        return ServerError("not_found", f"no snapshot {request.snapshot}: {why} ({standing.failure.what})")
    return SandboxError(standing.failure.what)


def _offered(config: ClusterConfig, scheduler: Any) -> Capabilities:
    """What the backend that will be used can do, once there is a machine that has it."""
    end = time.monotonic() + config.open_s
    offers: list[Capabilities] = []
    while (left_s := end - time.monotonic()) > 0:
        try:
            offers = ray.get(scheduler.capabilities.remote(), timeout=left_s)
        except GetTimeoutError:
            break
        except RayError:
            pass  # it is being restarted
        if (found := find_offer(offers, config.backend, config.isolation)) is not None:
            return found
        time.sleep(_AGAIN_S)
    wanted = describe_requirement(config.backend, config.isolation) or "a backend"
    raise DeadlineExceeded(
        f"a machine of cluster {config.name!r} that offers {wanted}",
        config.open_s,
        f"offered: {describe_offers(offers) or 'nothing yet'}",
    )

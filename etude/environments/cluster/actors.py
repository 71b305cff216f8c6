"""The two kinds of process of a cluster, as Ray actors: its scheduler, and an agent on each machine.

Both are thin: each holds one object of this package and passes calls on. Ray starts either again when it dies, on the
same machine, by calling `__init__` as it did at first; that is all the recovery there is, so `__init__` must take up
what is there. It is a coroutine because what it opens belongs to the actor's event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import ray
import structlog

from etude.environments.base import Capabilities, SandboxSpec
from etude.environments.cluster.agent import Agent, Order
from etude.environments.cluster.calls import NAMESPACE, actor, call_within, fetch_within, scheduler_name
from etude.environments.cluster.reporter import Message
from etude.environments.cluster.service import ClusterMachine, RequestStatus, Service
from etude.environments.cluster.settings import AgentConfig, ServiceConfig
from etude.environments.scheduling.messages import Hello, Priority, Request
from etude.environments.scheduling.scheduler import Waiting

_TELL_S = 10.0
_UNPACK_S = 120.0
_CALLS_AT_ONCE = 20_000
"""Ray lets in as many at once; those beyond wait outside, heartbeats too, so it must be more than can ever come."""


@actor(num_cpus=0, max_restarts=-1, max_concurrency=_CALLS_AT_ONCE)
class SchedulerActor:
    """The scheduler of a cluster."""

    async def __init__(self, config: ServiceConfig) -> None:
        restarted = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self.config, self.service = config, Service(config, restarted)
        self.service.start().add_done_callback(_end_with)

    async def report(
        self, node: str, messages: Sequence[Message], agent: Any = None, capabilities: tuple[Capabilities, ...] = ()
    ) -> str:
        """What a machine says; with a greeting comes by what it is reached."""

        async def send(orders: Sequence[Order]) -> None:
            await call_within(agent.obey.remote(orders), self.config.send_s, f"{node} to take {len(orders)} orders")

        machine = None if agent is None else ClusterMachine(agent, send, capabilities)
        return self.service.receive(node, messages, machine)

    async def ask(self, request: Request, given: Sequence[Any], wait_s: float) -> RequestStatus:
        """`given` is one reference in a list, which keeps Ray from opening it, or none."""
        return await self.service.ask(request, given or None, wait_s)

    async def end(self, request_id: str, why: str) -> None:
        self.service.end(request_id, why)

    async def waiting(self, priority: Priority, limit: int) -> list[Waiting]:
        return self.service.waiting(priority, limit)

    async def line(self, request_id: str) -> Waiting | None:
        return self.service.line(request_id)

    async def figures(self) -> dict[str, float]:
        return self.service.figures()

    async def capabilities(self) -> list[Capabilities]:
        return self.service.capabilities()

    async def pid(self) -> int:
        return os.getpid()


@actor(num_cpus=0, max_restarts=-1, max_concurrency=_CALLS_AT_ONCE)
class AgentActor:
    """The agent of one machine."""

    async def __init__(self, name: str, config: AgentConfig, cluster: str) -> None:
        # by name: a restart must not depend on a reference that whoever started us may have dropped
        self.scheduler = ray.get_actor(scheduler_name(cluster), NAMESPACE)
        self.agent = Agent(name, config, self._tell, _unpack)
        for work in self.agent.start():
            work.add_done_callback(_end_with)

    async def _tell(self, messages: Sequence[Message]) -> str:
        card: tuple[Any, ...] = ()
        if any(isinstance(message, Hello) for message in messages):
            card = ray.get_runtime_context().current_actor, tuple(self.agent.node.capabilities)
        call = self.scheduler.report.remote(self.agent.name, messages, *card)
        return await call_within(call, _TELL_S, "the scheduler to hear a machine")

    # for the scheduler --------------------------------------------------------------------------------------------

    async def obey(self, orders: Sequence[Order]) -> None:
        self.agent.obey(orders)

    # for callers --------------------------------------------------------------------------------------------------

    async def ping(self) -> None:
        """It answers."""

    async def call(self, sandbox: str, verb: str, arguments: dict[str, Any]) -> Any:
        return await self.agent.call(sandbox, verb, **arguments)

    async def release(self, snapshot: str) -> None:
        await self.agent.release(snapshot)

    # for whoever runs the cluster ---------------------------------------------------------------------------------

    async def pid(self) -> int:
        return os.getpid()

    async def close(self) -> None:
        await self.agent.close()


def _end_with(work: asyncio.Task[None]) -> None:
    """A process whose heart has stopped must not go on looking alive: ended, it is started again, and recovers."""
    if not work.cancelled():
        structlog.get_logger("environments").error("bug", exc_info=work.exception())
        os._exit(1)


async def _unpack(given: Sequence[Any]) -> SandboxSpec:
    return await fetch_within(given[0], _UNPACK_S, "what a sandbox is made of to come from whoever asked for it")

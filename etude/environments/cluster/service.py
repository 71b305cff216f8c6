"""The scheduler at work: one Scheduler with a real clock, its orders sent to machines, its callers woken.

Owns the loop (`decide` whenever something has happened or falls due), the line of orders to each machine, and who waits
for which request. Decides nothing itself. One per cluster, on one event loop; knows nothing of Ray.

It keeps nothing on disk. When it is killed and started again, machines greet it with what they run, which it adopts;
callers ask again with the ids they have; until `recover_s` has passed it places nothing. What a machine says before it
has greeted this life of the scheduler is not heard: a sandbox it tells of would be taken for nobody's.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog

from etude.environments.base import Capabilities
from etude.environments.cluster.agent import Order
from etude.environments.cluster.reporter import Message
from etude.environments.cluster.settings import ServiceConfig
from etude.environments.scheduling.ledger import FINAL, State, Ticket
from etude.environments.scheduling.messages import (
    Command,
    Ended,
    Heartbeat,
    Hello,
    Placed,
    PlaceSandbox,
    Priority,
    Request,
)
from etude.environments.scheduling.scheduler import Decisions, Scheduler, Waiting
from etude.errors import EtudeError
from etude.records import InfraFailed

Send: TypeAlias = Callable[[Sequence[Order]], Awaitable[None]]
"""Delivers orders to one machine; raises EtudeError where it did not take them."""

_ORDERS_AT_ONCE = 1000
_LOOK_S = 1.0
_BREATH_S = 0.005
_AWAY_S = 2.0
_ASK_AGAIN_S = 2.0


@dataclass(frozen=True)
class ClusterMachine:
    """How a machine is reached, and what its backends can do."""

    agent: Any
    """What callers reach it by."""
    send: Send
    capabilities: tuple[Capabilities, ...]


@dataclass(frozen=True)
class RequestStatus:
    """How a request stands, as its caller is told."""

    state: State
    why: str = ""
    sandbox: str | None = None
    node: str | None = None
    agent: Any = None
    failure: InfraFailed | None = None
    ask_again_s: float | None = None
    """When to come again: the request was refused, or there is no place here to wait."""


class OrderSender:
    """Takes orders to one machine, in order. What it could not deliver is lost, which the scheduler reckons with."""

    def __init__(self, machine: ClusterMachine) -> None:
        self.machine = machine
        self._out: list[Order] = []
        self._work: asyncio.Task[None] | None = None
        self.undelivered = 0

    def post(self, orders: list[Order]) -> None:
        self._out += orders
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._deliver())

    def renew(self, machine: ClusterMachine, restarted: bool) -> None:
        """The machine has greeted; orders to an agent that is gone are not for its successor."""
        self.machine = machine
        if restarted:
            self._out.clear()

    async def _deliver(self) -> None:
        while self._out:
            batch, self._out = self._out, []
            try:
                await self.machine.send(batch)
            except EtudeError as error:
                self.undelivered += len(batch)
                structlog.get_logger("environments").info("undelivered", orders=len(batch), why=str(error))


class Service:
    """See the module. `restarted`: an earlier life of it has placed sandboxes that may still be there."""

    def __init__(self, config: ServiceConfig, restarted: bool) -> None:
        self.config = config
        self.epoch = secrets.token_hex(4)
        decided = config.scheduler if restarted else config.scheduler.model_copy(update={"recover_s": 0.0})
        self.scheduler = Scheduler(decided, self.epoch, time.monotonic())
        self._couriers: dict[str, OrderSender] = {}
        self._incarnations: dict[str, int] = {}
        self._given: dict[str, Any] = {}
        """References to the specs of requests that may still be placed, by id."""
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._askers = 0
        self._changed = asyncio.Event()
        self._awake_at = time.monotonic()
        self._work: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin to decide. Returns the work that never ends by itself, for whoever must know if it does."""
        self._work = asyncio.get_running_loop().create_task(self._run())
        return self._work

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait({self._work})

    # machines -----------------------------------------------------------------------------------------------------

    def receive(self, node: str, messages: Sequence[Message], machine: ClusterMachine | None) -> str:
        """What a machine says; `machine` comes with a greeting. Returns the epoch of this life."""
        for message in messages:
            if isinstance(message, Hello):
                assert machine is not None
                self._meet(message, machine)
            if node in self._couriers:
                self._take_in(message)
        self._changed.set()
        return self.epoch

    def _meet(self, hello: Hello, machine: ClusterMachine) -> None:
        before = self._incarnations.get(hello.node)
        courier = self._couriers.setdefault(hello.node, OrderSender(machine))
        courier.renew(machine, restarted=before is not None and before != hello.incarnation)
        self._incarnations[hello.node] = hello.incarnation

    def _take_in(self, message: Message) -> None:
        now = time.monotonic()
        match message:
            case Hello():
                self.scheduler.hello(message, now)
            case Heartbeat():
                self.scheduler.heartbeat(message, now)
            case Placed():
                self.scheduler.placed(message, now)
            case Ended():
                self.scheduler.ended(message, now)

    def capabilities(self) -> list[Capabilities]:
        """What the machines that live offer, each once."""
        alive = (self._couriers[name] for name in self.scheduler.fleet.nodes if name in self._couriers)
        return list(dict.fromkeys(each for courier in alive for each in courier.machine.capabilities))

    # callers ------------------------------------------------------------------------------------------------------

    async def ask(self, request: Request, given: Any, wait_s: float) -> RequestStatus:
        """Ask for a sandbox, or how it stands, as often as one likes: the same id is never a second one. Returns when
        it is ready or has failed, and after `wait_s`. `given`: a reference to its spec, or None."""
        ticket = self.scheduler.submit(request, time.monotonic())
        self._changed.set()
        assert ticket.state is not None
        if ticket.state not in FINAL and ticket.state is not State.READY:
            if given is not None:
                self._given[request.id] = given
            if self._askers >= self.config.askers:
                return RequestStatus(ticket.state, ticket.why, ask_again_s=_ASK_AGAIN_S)
            await self._news_of(request.id, wait_s)
        return self._request_status(ticket)

    def end(self, request_id: str, why: str) -> None:
        """A caller is done with a request, in whatever state it is; fine where it is not known."""
        if self.scheduler.knows(request_id):
            self.scheduler.end(request_id, time.monotonic(), why)
            self._changed.set()

    def waiting(self, priority: Priority, limit: int) -> list[Waiting]:
        """The head of a class's queue, for people."""
        return self.scheduler.waiting(priority, time.monotonic(), limit)

    def line(self, request_id: str) -> Waiting | None:
        """One request's place in the queue, and what it waits for; None where it is not in it."""
        known = self.scheduler.knows(request_id)
        return self.scheduler.waiting_for(request_id, time.monotonic()) if known else None

    def figures(self) -> dict[str, float]:
        """How things stand and what has happened, for metrics."""
        undelivered = sum(courier.undelivered for courier in self._couriers.values())
        return {**self.scheduler.gauges(), **self.scheduler.totals, "orders_undelivered": undelivered}

    async def _news_of(self, request_id: str, wait_s: float) -> None:
        told = asyncio.get_running_loop().create_future()
        self._waiting[request_id].add(told)
        self._askers += 1
        try:
            await asyncio.wait({told}, timeout=wait_s)
        finally:
            self._askers -= 1
            others = self._waiting[request_id]
            others.discard(told)
            if not others:
                del self._waiting[request_id]

    def _request_status(self, ticket: Ticket) -> RequestStatus:
        assert ticket.state is not None
        if ticket.refusal is not None:
            return RequestStatus(ticket.state, ticket.refusal.what, ask_again_s=ticket.refusal.retry_after_s)
        if ticket.state is State.READY and ticket.lease is not None:
            node = ticket.lease.node.name
            return RequestStatus(ticket.state, "", ticket.lease.id, node, self._couriers[node].machine.agent)
        return RequestStatus(ticket.state, ticket.why, failure=ticket.failure)

    # the loop -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._something_due()
            if time.monotonic() - self._awake_at > _AWAY_S:
                # this process stood still: hear the machines out before their silence is held against them
                await asyncio.sleep(_LOOK_S)
            self._awake_at = now = time.monotonic()
            decisions = self.scheduler.decide(now, _ORDERS_AT_ONCE)
            if len(decisions.commands) >= _ORDERS_AT_ONCE:
                self._changed.set()
            self._send(decisions.commands)
            self._tell(decisions)

    async def _something_due(self) -> None:
        now = time.monotonic()
        due = self.scheduler.next_wake(now)
        wait_s = _LOOK_S if due is None else min(_LOOK_S, max(_BREATH_S, due - now))
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _send(self, commands: Sequence[Command]) -> None:
        orders: defaultdict[str, list[Order]] = defaultdict(list)
        for command in commands:
            given = self._given.get(command.request.id) if isinstance(command, PlaceSandbox) else None
            orders[command.node].append((command, given))
        for node, posted in orders.items():
            if (courier := self._couriers.get(node)) is not None:
                courier.post(posted)

    def _tell(self, decisions: Decisions) -> None:
        for notice in decisions.notices:
            if notice.state != State.READY and notice.state not in FINAL:
                continue
            self._given.pop(notice.request, None)
            for told in self._waiting.get(notice.request, ()):
                if not told.done():
                    told.set_result(None)

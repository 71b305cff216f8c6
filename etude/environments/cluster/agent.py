"""One machine's agent: owns its Node, obeys the scheduler's orders, and says what became of them.

Owns which order made which sandbox. Orders come in order and may come twice: one that was carried out is answered again
(see scheduling/messages). A start is cancelled by a KillSandbox, and its answer is then Ended, once nothing is left.
What callers do with sandboxes is `call`, and never passes through the scheduler. Knows nothing of Ray: how words
travel, and how what a sandbox is made of is fetched, is given to it.

When an agent is killed, its sandboxes die with it. The next one on the machine finds what is left, removes it before it
says Hello, and lists none: the scheduler then tells every request what it lost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from etude.environments.base import SandboxSpec, Snapshot
from etude.environments.cluster.pressure import Gauge
from etude.environments.cluster.reporter import Reporter, Tell
from etude.environments.cluster.settings import AgentConfig
from etude.environments.hosted import Hosted
from etude.environments.images.store import ImageStore
from etude.environments.lives import LiveSandbox
from etude.environments.namespace import NamespaceConfig
from etude.environments.node import Node
from etude.environments.scheduling.messages import (
    AskHello,
    Command,
    Ended,
    Heartbeat,
    Hello,
    KillSandbox,
    Offer,
    Placed,
    PlaceSandbox,
    image_key,
    snapshot_key,
)
from etude.environments.wire import SPOILED, ServerError, gone
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, SandboxError, SandboxSpoiled

_GONE_KEPT = 10_000
_HEARD_S = 5.0
_THE_SCHEDULERS = ("fork", "ttl")
"""Verbs of which the scheduler must know."""
_TTL_SLACK_S = 60.0
"""The scheduler ends a sandbox whose time is up; the node's own clock is for when there is no scheduler."""


Order: TypeAlias = tuple[Command, Any]
"""A command, and a reference to the spec of what it places, where that says more than the request does; or None."""
Unpack: TypeAlias = Callable[[Any], Awaitable[SandboxSpec]]
"""Fetches what a reference stands for; raises SandboxError where it cannot be had any more."""


@dataclass(eq=False)
class _PlacedSandbox:
    """One sandbox that was ordered, from the order to its end."""

    order: PlaceSandbox
    work: asyncio.Task[None] | None = None
    """Its start, or its handing over to who it was kept warm for."""
    ending: asyncio.Task[None] | None = None
    live: LiveSandbox | None = None
    why: str = ""
    """Of its end, once that has been ordered."""


class Agent:
    """See the module. Made, used and closed on one event loop. Making one opens the node's backends, and so removes
    what a killed agent of this name left."""

    def __init__(self, name: str, config: AgentConfig, tell: Tell, unpack: Unpack) -> None:
        self.name, self.config, self._unpack = name, config, unpack
        self.node = Node(config.node.model_copy(update={"state_dir": config.state_dir(name)}))
        self.node.watch = self._on_end
        self.hosted = Hosted(self.node)
        self.resources = config.resources()
        self.incarnation = time.time_ns()
        self.reporter = Reporter(tell, self._hello)
        self._boxes: dict[str, _PlacedSandbox] = {}
        self._of_live: dict[str, str] = {}
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()
        namespaces = [each for each in config.node.backends if isinstance(each, NamespaceConfig)]
        self._images = [ImageStore(each.images) for each in namespaces if os.geteuid() == 0]  # others have only "host"
        self._gauge = Gauge(config.sandboxes_dir, self.resources.cpus)
        self._beating: asyncio.Task[None] | None = None

    def start(self) -> list[asyncio.Task[None]]:
        """Report, and take orders. Returns the work that never ends by itself, for whoever must know if it does."""
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        return [self._beating, self.reporter.start()]

    async def close(self) -> None:
        """End every sandbox; the scheduler is told by silence."""
        if self._beating is not None:
            self._beating.cancel()
        await self.reporter.stop()
        boxes = list(self._boxes.values())
        for box in boxes:
            if box.work is not None:
                box.work.cancel()
        working = [task for box in boxes for task in (box.work, box.ending) if task is not None]
        await asyncio.gather(*working, return_exceptions=True)
        await self.node.close()

    # orders -------------------------------------------------------------------------------------------------------

    def obey(self, orders: Sequence[Order]) -> None:
        """Begin what is ordered, in this order. Does not wait for it: answers are reported."""
        for command, given in orders:
            if isinstance(command, AskHello):
                self.reporter.send_hello()
            elif isinstance(command, KillSandbox):
                self.kill(command.sandbox, command.why)
            else:
                self._place(command, given)

    def kill(self, sandbox: str, why: str) -> asyncio.Task[None] | None:
        """Begin to end a sandbox, whatever state it is in; None where there is none, which is said again."""
        box = self._boxes.get(sandbox)
        if box is None:
            self.reporter.send(lambda seq: Ended(self.name, self.incarnation, seq, sandbox))
            return None
        if box.ending is None:
            box.why = why
            box.ending = asyncio.get_running_loop().create_task(self._end(box))
        return box.ending

    def _place(self, order: PlaceSandbox, given: Any) -> None:
        box = self._boxes.get(order.sandbox)
        if box is None and order.sandbox in self._gone:
            self.reporter.send(lambda seq: Ended(self.name, self.incarnation, seq, order.sandbox))
        elif box is None and order.action == "resume":
            self._say_placed(order, SandboxError(f"{order.sandbox}, kept warm, is not on {self.name} any more"))
        elif box is None:
            box = self._boxes[order.sandbox] = _PlacedSandbox(order)
            box.work = asyncio.get_running_loop().create_task(self._start(box, given))
        elif box.ending is not None or (box.work is not None and not box.work.done()):
            return  # its answer is on the way
        elif order.action == "resume" and box.order != order:
            box.work = asyncio.get_running_loop().create_task(self._hand_over(box, order, given))
        else:
            self._say_placed(order)

    async def _start(self, box: _PlacedSandbox, given: Any) -> None:
        order = box.order
        try:
            spec = await self._spec(order, given)
            box.live = await self.node.create(spec, order.backend, order.request.isolation)
        except (EtudeError, OSError) as error:
            self._forget(order.sandbox, "lost", f"its start failed: {error}")
            self._say_placed(order, error)
            return
        self._of_live[box.live.id] = order.sandbox
        self._say_placed(order)

    async def _hand_over(self, box: _PlacedSandbox, order: PlaceSandbox, given: Any) -> None:
        """Give a warm sandbox to the request it is for: its files, and its time to live."""
        assert box.live is not None
        try:
            spec = await self._spec(order, given)
            bare = SandboxSpec(image=spec.image, resources=spec.resources)
            if replace(spec, files={}, labels={}, ttl_s=None) != bare:
                raise ConfigError("what a sandbox is given besides files must be known before it is kept warm")
            for path, data in spec.files.items():
                await box.live.sandbox.write_file(f"/workspace/{path}", data)
            if spec.ttl_s is not None:
                self.node.set_ttl(box.live, spec.ttl_s)
        except (EtudeError, OSError) as error:
            await self._remove(box, f"it could not be handed over: {error}")
            self._say_placed(order, error)
            return
        box.order = order  # only now: a scheduler that begins anew adopts what a Hello says is a request's
        self._say_placed(order)

    async def _spec(self, order: PlaceSandbox, given: Any) -> SandboxSpec:
        request = order.request
        spec = SandboxSpec() if given is None else await self._unpack(given)
        base = None
        if request.snapshot is not None:
            home, _, kept = request.snapshot.partition("/")
            if home != self.name:
                raise SandboxError(f"snapshot {request.snapshot} is on {home}, and snapshots are not moved")
            base = Snapshot(kept)
        ttl_s = None if request.ttl_s is None else request.ttl_s + _TTL_SLACK_S
        labels = {**spec.labels, "sandbox": order.sandbox}
        return replace(spec, image=request.image, base=base, resources=request.resources, ttl_s=ttl_s, labels=labels)

    async def _end(self, box: _PlacedSandbox) -> None:
        sandbox = box.order.sandbox
        try:
            if box.work is not None:
                box.work.cancel()
                await asyncio.wait({box.work})
            await self._remove(box, box.why)
        except BaseException:
            box.ending = None  # the order comes again, until it is done
            raise
        self.reporter.send(lambda seq: Ended(self.name, self.incarnation, seq, sandbox))

    async def _remove(self, box: _PlacedSandbox, why: str) -> None:
        if box.live is not None:
            self._of_live.pop(box.live.id, None)  # so that its end is no news
            await self.node.destroy(box.live.id)
        self._forget(box.order.sandbox, "ended", why)

    def _on_end(self, live: str, state: str, why: str) -> None:
        """A sandbox has ended by itself: it failed, or its node's clock ended it."""
        sandbox = self._of_live.pop(live, None)
        if sandbox is not None:
            self._forget(sandbox, state, why)
            how = "crashed" if state in ("lost", SPOILED) else "killed"
            self.reporter.send(lambda seq: Ended(self.name, self.incarnation, seq, sandbox, how))

    def _forget(self, sandbox: str, kind: str, why: str) -> None:
        self._boxes.pop(sandbox, None)
        self._gone[sandbox] = kind, self._gone_for(sandbox, why)
        while len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)

    def _gone_for(self, sandbox: str, why: str) -> str:
        return f"sandbox {sandbox} on {self.name} is gone: {why}"

    # words --------------------------------------------------------------------------------------------------------

    def _say_placed(self, order: PlaceSandbox, error: Exception | None = None) -> None:
        failed = None if error is None else f"{self.name} could not start it: {error}"
        retryable = error.retryable if isinstance(error, ServerError) else not isinstance(error, ConfigError)
        elsewhere = any(fetch.key.startswith("image/") for fetch in order.fetch)  # another machine may have the image
        self.reporter.send(
            lambda seq: Placed(self.name, self.incarnation, seq, order.sandbox, failed, retryable or elsewhere)
        )

    def _hello(self, seq: int) -> Hello:
        offers = tuple(Offer(each.name, each.isolation) for each in self.node.capabilities)
        orders = tuple(box.order for box in self._boxes.values() if box.live is not None)
        return Hello(
            self.name,
            self.incarnation,
            seq,
            self.resources,
            offers,
            self.config.start_slots,
            orders,
            self._holds(),
        )

    def _heartbeat(self, seq: int, listed: bool) -> Heartbeat:
        there = tuple(name for name, box in self._boxes.items() if box.live is not None)
        lists = (there, self._holds()) if listed else (None, None)
        return Heartbeat(self.name, self.incarnation, seq, self._gauge.read(), *lists)

    def _holds(self) -> tuple[str, ...]:
        named = [name for store in self._images for pair in store.names().items() for name in pair]
        return (*map(image_key, named), *(snapshot_key(f"{self.name}/{kept.id}") for kept in self.node.snapshots()))

    async def _beat(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(self.config.heartbeat_s)
            count += 1
            self.report_status(listed=count % self.config.list_every == 0)

    def report_status(self, listed: bool) -> None:
        """Put a heartbeat in line; `listed`: with all that is here."""
        self.reporter.send(lambda seq: self._heartbeat(seq, listed))

    # for callers --------------------------------------------------------------------------------------------------

    async def call(self, sandbox: str, verb: str, **arguments: Any) -> Any:
        """One of the verbs, of a caller. Waits are short and asked again, except for a command to end."""
        match verb:
            case "snapshot":
                return Snapshot(await self.snapshot(sandbox))
            case "destroy":
                return await self.destroy(sandbox)
            case "output":
                return await self._printed(sandbox, **arguments)
            case _ if verb in _THE_SCHEDULERS:
                raise ConfigError(f"{verb}: a sandbox of a cluster has no such call; its caller asks the scheduler")
        async with self._named(sandbox) as name:
            return await self.hosted.call(name, verb, **arguments)

    async def _printed(self, sandbox: str, process: int, at: int, wait_s: float) -> tuple[bytes, bool]:
        """What a background command has printed from byte `at` on, as soon as there is any; and whether it ended."""
        async with self._named(sandbox) as name, self.node.use(name, awake=False) as live:
            found, seen = await self.hosted.process(live, process), 0
            try:
                async with asyncio.timeout(wait_s):
                    async for piece in found.output():
                        seen += len(piece)
                        if seen > at:
                            return piece[len(piece) - (seen - at) :], False
            except TimeoutError:
                return b"", False
            return b"", True

    @asynccontextmanager
    async def _named(self, sandbox: str) -> AsyncGenerator[str]:
        """What a sandbox is called on its node. Raises ServerError saying what became of one that is not there."""
        box = self._boxes.get(sandbox)
        if box is None or box.live is None:
            unknown = f"sandbox {sandbox} is not on {self.name}: its agent was restarted, or it ended long ago"
            raise gone(*self._gone.get(sandbox, ("lost", unknown)))
        try:
            yield box.live.id
        except (ServerError, SandboxSpoiled):
            if box.ending is not None:
                raise ServerError("ended", self._gone_for(sandbox, box.why)) from None
            raise

    async def destroy(self, sandbox: str) -> None:
        """End a sandbox and wait until nothing of it is left; fine when there is none."""
        ending = self.kill(sandbox, "destroyed")
        if ending is not None:
            await asyncio.wait({ending})  # which goes on when we are cancelled
            ending.result()

    async def snapshot(self, sandbox: str) -> str:
        """A snapshot's id in the cluster. When this returns the scheduler knows where it is, if it can be reached."""
        async with self._named(sandbox) as name:
            kept = await self.hosted.call(name, "snapshot")
        self.report_status(listed=True)
        with suppress(DeadlineExceeded):  # it will hear of it when it is back, and nothing can be placed before
            await self.reporter.acknowledged(_HEARD_S)
        return f"{self.name}/{kept.id}"

    async def release(self, snapshot: str) -> None:
        """Forget a snapshot by its id in the cluster; fine when there is none."""
        try:
            await self.node.release(snapshot.partition("/")[2])
        except ServerError as error:
            if error.kind != "not_found":
                raise
        self.report_status(listed=True)

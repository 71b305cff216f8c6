"""The engines of a run: which there are, and what versions they hold.

An engine of the run's own is a `Worker`, and its policy is here: it loads the newest version before it is ready, and is
lost when its process ends, when it does not answer, or when it holds requests and counts nothing; what it held is
sampled again elsewhere. The first `fleet.engines` that are ready serve, and the others are spares. Engines join and
leave at any time, and whenever the serving ones change every session worker is told (`router` says what sessions then
do). Engines of another's come and go by a hook (`Lender`): whoever lends them adds and removes them.

Owns engine processes and what is known of them; knows no session and no token. Talks to: links (the engines), and
whoever is told the `FleetView`s.
"""

from __future__ import annotations

import asyncio
import pkgutil
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

from etude.deadlines import scaled
from etude.engine.config import EngineConfig
from etude.errors import ConfigError, EtudeError, WeightError
from etude.records import Version
from etude.rollouts.actors import engine as engine_actor
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Kind, Restarts
from etude.rollouts.links import FleetEngine, Link, Loaded, RayLink, Swap, counts
from etude.rollouts.machines.joining import placed
from etude.rollouts.ray_process import STOP_S
from etude.rollouts.router import FleetView, Member
from etude.rollouts.worker import Event, Worker, WorkerGone, WorkerState
from etude.rollouts.worker_pool import Workers

FLEET = (
    "engines", "engines_joined", "engines_left", "engines_lost", "engines_replaced", "spares_used", "loads_tried_again",
    "sessions_moved", "sessions_moved_for_load", "turns_resampled", "engine_waits", "engines_borrowed",
    "engines_given_back", "engines_recalled",
)  # fmt: skip
"""What a run's summary tells of its engines, and of the ways of its sessions to them."""
LOAD_S = 180.0
"""An engine may take so long to fetch a version, tries included: a store that is away is back by then, or is not. To
serve it has its own limit (`engine.update_s`)."""
STALL_S = 180.0
"""An engine that holds requests and computes nothing for so long is killed and replaced: its longest step takes
seconds."""
_AGAIN_S = 0.5
_BEAT_S = 1.0
"""How often session workers are told which engines there are, whether or not that has changed: one may be new."""


class Lender(Protocol):
    """Where a fleet has engines from that are not its own. It is given the config, what the fleet needs, and the fleet,
    whose `add` and `remove` it calls.
    """

    counters: Counter[str]

    async def run(self) -> None:
        """Lend and take back, until cancelled."""
        ...

    async def close(self) -> None:
        """Take back all."""
        ...

    def summary(self) -> dict[str, Any]:
        """What the run's summary says of it."""
        ...


class Fleet:
    """Use on one event loop. `restarts` says how often engines may die. Implements `worker.ProcessSpec`."""

    kind: Kind = "engine"

    def __init__(self, config: RunConfig, store: str, restarts: Restarts) -> None:
        self.config, self.store, self.restarts = config, store, restarts
        self.engines: dict[str, FleetEngine] = {}
        """Those there are, of those too that start."""
        spares = restarts.config.spares if isinstance(config.engine, EngineConfig) else 0
        self.own: Workers[Link] = Workers(self, places_of(config), spares, restarts, self._took)
        self.lent: dict[str, Worker[Link]] = {}
        self.newest: Mapping[str, Any] | None = None
        """What the trainer has published last: its version and root."""
        self.on_joining: Callable[[Mapping[str, Any], list[Swap]], object] = lambda published, swaps: None
        """Told what came of the version that an engine takes up before it serves; `deliver` tells of all others."""
        self.counters: Counter[str] = Counter()
        self.listeners: list[Callable[[FleetView], None]] = []
        """Told the view whenever it changes, and every second."""
        self._put: tuple[Any, Version] | None = None
        self._past: Counter[str] = Counter()
        self._past_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = self._number = 0
        self._loss = ""
        self._failure: EtudeError | None = None
        self.lender: Lender | None = None
        self._lending: asyncio.Task[None] | None = None
        if config.fleet.lending is not None:
            asking = {"borrower": config.name, "store": store, "expert_format": config.model.expert_format}
            lender = pkgutil.resolve_name(config.fleet.lending.opens)
            self.lender = lender(config.fleet.lending, asking, self)

    # --- which engines there are --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the recipe's engines and spares; returns when all are ready. Raises what one did not start for."""
        self._later(self._beat())
        await self.own.start()

    async def join(self) -> str:
        """Start one more engine; returns its name once it serves."""
        self._require_own_kind()
        worker = self.own.add()
        engine = await worker.ready()
        self.own.size += 1
        self.own.promote(worker)
        self.counters["engines_joined"] += 1
        self.tell()
        return engine.name

    async def leave(self, name: str, drain_s: float = 30.0) -> None:
        """Have an engine of the run's own end: turns in progress there have `drain_s`, its sessions go elsewhere."""
        worker = next((each for each in self.own.all if each.process.name == name), None)
        if worker is None:
            own = [each.process.name for each in self.own.all]
            raise ConfigError(f"{name!r} is no engine of the run's own; these are: {', '.join(own) or 'none'}")
        self.own.size -= worker in self.own.serving()
        self.counters["engines_left"] += 1
        await worker.leave(self._drained(worker.process, drain_s), "it was asked to leave")

    async def replace(self, drain_s: float) -> int:
        """Put a new process in the place of each of the run's own, one after the other; returns how many."""
        self._require_own_kind()
        return await self.own.renew(lambda link: self._drained(link, drain_s))

    async def close(self) -> None:
        """End all engines in order."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.lender is not None:
            await self.lender.close()
        await self.own.close()

    def raise_if_failed(self) -> None:
        """Raises what makes it impossible to have engines."""
        if (failure := self.own.failure or self._failure) is not None:
            raise failure

    def add(self, link: Link) -> FleetEngine:
        """Take in an engine of another's; it serves once it has the newest version."""
        policy = _Lent(self, link)
        self.lent[link.name] = Worker(policy, 0, self.restarts, self._took, replaced=False)
        return self.engines[link.name]

    def remove(self, engine: FleetEngine, why: str) -> None:
        """An engine of another's is out of the fleet, and whoever samples there goes elsewhere."""
        if (worker := self.lent.get(engine.name)) is not None:
            worker.why = why
            worker.release()

    def _serving(self) -> list[Worker[Link]]:
        return [*self.own.serving(), *(each for each in self.lent.values() if each.state == "ready")]

    def _ready(self) -> list[Worker[Link]]:
        return [each for each in self._all() if each.state == "ready"]

    def _all(self) -> list[Worker[Link]]:
        return [*self.own.all, *self.lent.values()]

    def _require_own_kind(self) -> None:
        if not isinstance(self.config.engine, EngineConfig):
            raise ConfigError("engine.urls: says which engines there are; start the run with another list")

    async def _drained(self, link: Link, seconds: float) -> None:
        end = time.monotonic() + seconds
        with suppress(EtudeError):
            while time.monotonic() < end:
                stats = await link.stats(scaled(STOP_S))
                if not stats.get("running") and not stats.get("waiting"):
                    return
                await asyncio.sleep(0.05)

    # --- the policy of an engine --------------------------------------------------------------------------------------

    def open(self, place: int) -> RayLink:
        name = f"engine-{self._made}"
        self._made += 1
        actor = placed(engine_actor.EngineActor, "engine", self.config, name=name)
        link = RayLink(name, actor.remote(self.config, self.store, place))
        self.engines[name] = FleetEngine(name, link)
        return link

    async def prepare(self, process: Link) -> None:
        """It has the newest version. Weights that are wrong in one of the run's own would be so in the next one too."""
        engine = self.engines[process.name]
        engine.look(await process.stats(self.restarts.start_s), time.monotonic())
        while (newest := self.newest) is not None and (engine.loaded is None or engine.loaded < newest["version"]):
            told_at = time.monotonic()
            loaded = await self._load(engine, newest)
            self.on_joining(newest, [Swap(engine.name, loaded, time.monotonic() - told_at)])
        if self._put is not None:
            await self._put_into(process)

    async def look(self, process: Link, deadline_s: float) -> None:
        engine, stall_s = self.engines[process.name], scaled(STALL_S)
        engine.look(await process.stats(deadline_s), time.monotonic())
        if engine.stood_still_s(time.monotonic()) > stall_s:
            raise WorkerGone(f"{engine.name} held requests and computed nothing for {stall_s:.0f} s")

    def _took(self, worker: Worker[Link], event: Event, before: WorkerState) -> None:
        """A worker's state has changed."""
        own = worker.process.name not in self.lent
        if event == "rested":
            self.counters["engines_replaced"] += 1
        elif before in ("starting", "ready", "leaving") and event != "leave" and worker.state != "ready":
            self._gone(worker)
            self.counters["engines_lost"] += own and event == "died" and before != "leaving"
        for each in self._serving():
            engine = self.engines[each.process.name]
            engine.serving_since = engine.serving_since or time.monotonic()
        self.tell()

    def _gone(self, worker: Worker[Link]) -> None:
        self.lent.pop(worker.process.name, None)
        engine = self.engines.pop(worker.process.name)
        engine.gone = True
        self._past.update(counts(engine.stats))
        self._past_s += engine.served_s(time.monotonic())
        self._loss = f"{engine.name} is gone: {worker.why}"

    # --- versions -----------------------------------------------------------------------------------------------------

    async def deliver(self, published: Mapping[str, Any]) -> list[Swap]:
        """Have every engine take up a version that is in the store; returns when all have, or have gone. Engines that
        start meanwhile take it before they serve. Raises what made it impossible for an engine that lives.
        """
        if self.newest is None or published["version"] >= self.newest["version"]:
            self.newest = published
        if self.lender is not None and self._lending is None:
            self._lending = self._later(self.lender.run())  # not before: a lent engine has nothing of the run's
        return list(await asyncio.gather(*(self._swap(each, published) for each in self._ready())))

    async def _swap(self, worker: Worker[Link], published: Mapping[str, Any]) -> Swap:
        engine, told_at, loaded = self.engines[worker.process.name], time.monotonic(), None
        try:
            loaded = await self._load(engine, published)
        except WorkerGone:
            return Swap(engine.name, None, time.monotonic() - told_at, lost=True)
        except EtudeError as error:
            if not worker.replaced:
                worker.lost(engine.link, str(error))
            elif not engine.gone:
                raise
            return Swap(engine.name, None, time.monotonic() - told_at, lost=True)
        return Swap(engine.name, loaded, time.monotonic() - told_at)

    async def _load(self, engine: FleetEngine, published: Mapping[str, Any]) -> Loaded | None:
        """Tried again until it has had its time or a newer version is to be loaded: the store may be away for a while.
        None where the engine has a later version. Raises WeightError where its root is not the trainer's.
        """
        version = Version(published["version"])
        end = time.monotonic() + scaled(LOAD_S)
        while True:
            seconds = max(end - time.monotonic(), 0.1) + scaled(self.config.engine.update_s)
            try:
                loaded = await engine.link.load(version, seconds)
                break
            except WorkerGone:
                raise
            except EtudeError:
                newer = self.newest is not None and self.newest["version"] > version
                if engine.gone or (time.monotonic() >= end and not newer):
                    raise
                if newer:
                    return None
            self.counters["loads_tried_again"] += 1
            await asyncio.sleep(_AGAIN_S)
        if loaded is None:
            return None
        if loaded["root"] != published["root"]:
            raise WeightError(f"version {version}: {engine.name} has root {loaded['root']}, not {published['root']}")
        engine.loaded, engine.root = version, loaded["root"]
        return loaded

    async def put(self, bits: Any, version: Version) -> None:
        """Have every engine serve weights that are on no chain, those that start later too. Nothing is borrowed from
        then on.
        """
        self._put = bits, version
        if self.lender is not None and self._lending is not None:
            self._lending.cancel()
            await self.lender.close()
        await asyncio.gather(*(self._put_into(each.process) for each in self._ready()))

    async def _put_into(self, link: Link) -> None:
        assert self._put is not None
        if isinstance(link, RayLink):
            await link.put(*self._put, scaled(self.config.engine.update_s))

    # --- telling ------------------------------------------------------------------------------------------------------

    def about(self) -> list[dict[str, Any]]:
        """Every engine: whose it is, what it does, the version it has taken (None: what it was started with), speed."""
        return [
            {
                "engine": each.name, "lent": each.lent, "state": state,
                "version": None if each.loaded is None else int(each.loaded), "root": each.root,
                "tokens_per_s": each.speed, "running": int(each.stats.get("running", 0)),
            }
            for each, state in self._states()
        ]  # fmt: skip

    def _states(self) -> list[tuple[FleetEngine, str]]:
        """Every engine, and what it does in words: a spare one is ready and does not serve."""
        serving = self._serving()
        return [
            (engine, "serving" if worker in serving else "spare" if worker.state == "ready" else worker.state)
            for worker in self._all()
            if (engine := self.engines.get(worker.process.name)) is not None
        ]

    def view(self) -> FleetView:
        """The engines as session workers are to see them."""
        states = self._states()
        there = [(each, state == "leaving") for each, state in states if state in ("serving", "leaving")]
        speeds = [each.speed for each, _ in there if each.speed]
        middle = sum(speeds) / len(speeds) if speeds else 1.0
        members = (Member(each.name, each.link, each.speed or middle, leaving) for each, leaving in there)
        known = [f"{each.name} is {state}" for each, state in states]
        failure = self.own.failure or self._failure
        said = None if failure is None else str(failure)
        return FleetView(self._number, tuple(members), ", ".join([*known, self._loss]).strip(", "), said)

    def tell(self) -> None:
        """Say to whoever listens which engines there are now."""
        self._number += 1
        view = self.view()
        for listener in self.listeners:
            listener(view)

    async def _beat(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(_BEAT_S)

    async def stats(self) -> dict[str, float]:
        """Counters of all engines that the run ever had, gauges of those it has, `engines` that serve, and the
        `engine_s` they have been there for: `busy_s` over that is the share of it they worked.
        """
        askable = [each for each in self._all() if each.state in ("ready", "leaving")]
        asked = await asyncio.gather(*(self._told(self.engines[each.process.name]) for each in askable))
        now, total = time.monotonic(), Counter(self._past)
        for each in asked:
            total.update(each)
        there = self._past_s + sum(each.served_s(now) for each in self.engines.values())
        total.update(self.counters)
        if self.lender is not None:
            total.update(self.lender.counters)
        return {**total, "spares_used": self.own.spares_used, "engines": len(self._serving()), "engine_s": there}

    def lending(self) -> dict[str, Any] | None:
        """What came of the lending of engines; None without any."""
        return None if self.lender is None else self.lender.summary()

    async def _told(self, engine: FleetEngine) -> Mapping[str, float]:
        with suppress(EtudeError):  # one that cannot be asked has told this before
            engine.look(await engine.link.stats(scaled(STOP_S)), time.monotonic())
        return {} if engine.gone else engine.stats

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A bug there must end the run: it would wait for engines that never come."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error if isinstance(error, EtudeError) else EtudeError(f"the fleet failed: {error!r}")
            self.tell()


class _Lent:
    """The policy of an engine that somebody lends: as of the fleet's own, and there is one process of it."""

    kind: Kind = "engine"

    def __init__(self, fleet: Fleet, link: Link) -> None:
        self.fleet, self.link = fleet, link

    def open(self, place: int) -> Link:
        self.fleet.engines[self.link.name] = FleetEngine(self.link.name, self.link, lent=True)
        return self.link

    async def prepare(self, process: Link) -> None:
        await self.fleet.prepare(process)

    async def look(self, process: Link, deadline_s: float) -> None:
        await self.fleet.look(process, deadline_s)


def places_of(config: RunConfig) -> int:
    """How many engines of its own a run has. Raises ConfigError where the recipe says two things."""
    said = config.fleet.engines
    if said == 0 and config.fleet.lending is None:
        raise ConfigError("fleet.engines: 0, and none are lent; give one, or a fleet.lending table")
    if isinstance(config.engine, EngineConfig):
        return 1 if said is None else said
    if said is not None and said != config.engine.replicas:
        raise ConfigError(f"fleet.engines: {said}, and engine.urls names {config.engine.replicas}; leave it out")
    return config.engine.replicas

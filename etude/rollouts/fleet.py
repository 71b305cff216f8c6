"""The engines of a run: which there are, what versions they hold, and that dead ones are replaced.

    starting ──newest version in──► serving ──leave()──► leaving ──► gone
       │ └──────────────────────► spare ──one died──► serving
       └──► gone, and replaced                └─ died or hung ─► gone, and replaced

An engine gets work only in `serving`. Engines join and leave at any time: a newcomer loads the newest version first,
and whenever the serving ones change every session worker is told (`router` says what sessions then do). An engine is
lost when its process ends, when it does not answer, or when it holds requests and counts nothing; what it held is
sampled again elsewhere. Owns engine processes and what is known of them (`fleet_engine`); knows no session and no
token. Talks to: links (the engines), faults (how often they may die), and whoever is told the `View`s.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from etude.deadlines import scaled
from etude.engine.config import EngineConfig
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, WeightError
from etude.records import Version
from etude.rollouts.actors import engine as engine_actor
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import BUSY, PING_S, PINGS, START_S, Restarts
from etude.rollouts.fleet_engine import Engine, State, Swap, counts
from etude.rollouts.lending import Borrower
from etude.rollouts.links import EngineGone, Loaded, RayLink
from etude.rollouts.router import Member, View
from etude.rollouts.waiting import STOP_S

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


class Fleet:
    """Use on one event loop. `restarts` says how often engines may die."""

    def __init__(self, config: RunConfig, store: str, restarts: Restarts) -> None:
        self.config, self.store, self.restarts = config, store, restarts
        self.engines: dict[str, Engine] = {}
        self.newest: Mapping[str, Any] | None = None
        """What the trainer has published last: its version and root."""
        self.on_joining: Callable[[Mapping[str, Any], list[Swap]], object] = lambda published, swaps: None
        """Told what came of the version that an engine takes up before it serves; `deliver` tells of all others."""
        self.failure: EtudeError | None = None
        """Why the run cannot have engines any more."""
        self.counters: Counter[str] = Counter()
        self.listeners: list[Callable[[View], None]] = []
        """Told the view whenever it changes, and every second."""
        self._put: tuple[Any, Version] | None = None
        self._past: Counter[str] = Counter()
        self._past_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = self._number = 0
        self._loss = ""
        self._changed = asyncio.Event()
        self.borrower: Borrower | None = None
        self._borrowing: asyncio.Task[None] | None = None
        if config.fleet.lending is not None:
            asking = {"borrower": config.name, "store": store, "expert_format": config.model.expert_format}
            self.borrower = Borrower(config.fleet.lending, asking, self.add, self.remove)

    # --- which engines there are --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the recipe's engines and spares; returns when all are ready. Raises EtudeError if one did not start."""
        spares = self.restarts.config.spare_engines
        if spares and not isinstance(self.config.engine, EngineConfig):
            raise ConfigError("faults.spare_engines: only engines of Etude's own can be spares; set it to 0")
        first = [self._begin(place, "serving") for place in range(places_of(self.config))]
        first += [self._begin(place, "spare") for place in range(spares)]
        self._later(self._beat())
        await self._until(
            lambda: not any(each.state == "starting" for each in first),
            scaled(START_S),
            "the engines to start",
        )
        dead = next((each for each in first if each.state == "gone"), None)
        if dead is not None:
            raise EtudeError(f"an engine did not start: {self._loss}")

    async def join(self) -> str:
        """Start one more engine; returns its name once it serves."""
        if not isinstance(self.config.engine, EngineConfig):
            raise ConfigError("engine.urls: says which engines there are; start the run with another list")
        engine = self._begin(self._made, "serving")
        await self._until(lambda: engine.state != "starting", scaled(START_S), f"{engine.name} to start")
        self.counters["engines_joined"] += 1
        return engine.name

    async def leave(self, name: str, drain_s: float = 30.0) -> None:
        """Have an engine of the run's own end: turns in progress there have `drain_s`, its sessions go elsewhere."""
        engine = self.engines.get(name)
        if engine is None or engine.place is None:
            own = [each.name for each in self.engines.values() if each.place is not None]
            raise ConfigError(f"{name!r} is no engine of the run's own; these are: {', '.join(own) or 'none'}")
        engine.state = "leaving"
        self.counters["engines_left"] += 1
        self.tell()
        with suppress(EtudeError):
            await self._drained(engine, drain_s)
        self.remove(engine, "it was asked to leave")
        with suppress(EtudeError):
            await engine.link.close()

    async def replace(self, drain_s: float) -> int:
        """Put a new process in the place of each of the run's own, one after the other; returns how many."""
        olds = [each.name for each in self.engines.values() if each.place is not None and each.state == "serving"]
        for old in olds:
            await self.join()
            await self.leave(old, drain_s)
            self.restarts.note("engine", "replaced by an operator")
        return len(olds)

    async def close(self) -> None:
        """End all engines in order."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.borrower is not None:
            await self.borrower.close()
        own = [each for each in self.engines.values() if each.place is not None]
        ended = await asyncio.gather(*(each.link.close() for each in own), return_exceptions=True)
        self.engines.clear()
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, EngineGone):
                raise error

    def raise_if_failed(self) -> None:
        """Raises what makes it impossible to have engines."""
        if self.failure is not None:
            raise self.failure

    def add(self, engine: Engine) -> None:
        """Take in an engine that can be asked or will be soon; it serves once it has the newest version."""
        self.engines[engine.name] = engine
        self._later(self._live(engine))

    def remove(self, engine: Engine, why: str) -> None:
        """It is out of the fleet, and whoever samples there goes elsewhere."""
        if self.engines.pop(engine.name, None) is None:
            return
        self._past.update(counts(engine.stats))
        self._past_s += engine.served_s(time.monotonic())
        engine.state = "gone"
        self._loss = f"{engine.name} is gone: {why}"
        self.tell()

    def _own(self, state: State) -> list[Engine]:
        return [each for each in self.engines.values() if each.place is not None and each.state == state]

    def _begin(self, place: int, goal: State) -> Engine:
        name = f"engine-{self._made}"
        self._made += 1
        actor = engine_actor.EngineActor.options(name=name).remote(self.config, self.store, place)
        engine = Engine(name, RayLink(name, actor), place, goal=goal)
        self.add(engine)
        return engine

    # --- an engine's life ---------------------------------------------------------------------------------------------

    async def _live(self, engine: Engine) -> None:
        """From its start until it is lost, and replaced if it was the run's own."""
        gone = asyncio.ensure_future(engine.link.ended())
        minded = asyncio.ensure_future(self._mind(engine))
        try:
            await asyncio.wait({gone, minded}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            minded.cancel()
        why, was = self._why(engine, gone, minded), engine.state
        if was in ("leaving", "gone"):
            return
        self.remove(engine, why)
        engine.link.kill()
        if engine.place is not None:
            self.counters["engines_lost"] += 1
            covered = was == "serving" and self._use_spare()
            await self._replace(engine.place, "spare" if covered else engine.goal, f"{engine.name}: {why}")

    def _why(self, engine: Engine, gone: asyncio.Future[str], minded: asyncio.Future[None]) -> str:
        """Why an engine is lost. Weights that are wrong in one of the run's own would be so in the next one too."""
        error = minded.exception() if minded.done() and not minded.cancelled() else None
        if isinstance(error, WeightError) and engine.place is not None:
            self._fail(error)
        elif error is not None and not isinstance(error, EtudeError):
            raise error
        return str(error) if error is not None else gone.result()

    def _use_spare(self) -> bool:
        spare = next(iter(self._own("spare")), None)
        if spare is not None:
            self.counters["spares_used"] += 1
            spare.goal = "serving"
            self._serve(spare)
        return spare is not None

    async def _replace(self, place: int, goal: State, why: str) -> None:
        try:
            await self.restarts.pause("engine", why)
        except EtudeError as error:
            self._fail(error)
        else:
            self.counters["engines_replaced"] += 1
            self._begin(place, goal)

    async def _mind(self, engine: Engine) -> None:
        """Bring an engine to its goal, and look after it from then on. Raises what is wrong with it."""
        await engine.link.started(scaled(START_S))
        engine.look(await engine.link.stats(scaled(START_S)), time.monotonic())
        while (newest := self.newest) is not None and (engine.loaded is None or engine.loaded < newest["version"]):
            told_at = time.monotonic()
            loaded = await self._load(engine, newest)
            self.on_joining(newest, [Swap(engine.name, loaded, time.monotonic() - told_at)])
        if self._put is not None:
            await self._put_into(engine)
        later = next((each for each in self._own("starting") if each.goal == "serving"), None)
        if engine.goal == "spare" and later is not None:
            engine.goal, later.goal = later.goal, engine.goal  # whoever is ready first serves
        engine.state = engine.goal
        if engine.goal == "serving":
            self._serve(engine)
        self._change()
        while True:
            await asyncio.sleep(scaled(PING_S) / PINGS)
            engine.look(await self._answer(engine), time.monotonic())
            stall_s = scaled(STALL_S)
            if engine.stood_still_s(time.monotonic()) > stall_s:
                raise DeadlineExceeded(f"{engine.name} to compute what it holds", stall_s)

    async def _answer(self, engine: Engine) -> Mapping[str, float]:
        """What it tells of itself. One that cannot be reached is asked again until it has had its time, and so is one
        that waits for its turn on a busy machine, for as long as that is likely.
        """
        patience_s, began = scaled(PING_S), time.monotonic()
        while True:
            try:
                return await engine.link.stats(patience_s)
            except EngineGone:
                raise
            except EtudeError:
                waited_s = time.monotonic() - began
                if waited_s >= BUSY * patience_s or (waited_s >= patience_s and not engine.link.computes()):
                    raise
            await asyncio.sleep(_AGAIN_S)

    def _serve(self, engine: Engine) -> None:
        engine.state, engine.serving_since = "serving", time.monotonic()
        self.tell()

    async def _drained(self, engine: Engine, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = await engine.link.stats(scaled(STOP_S))
            if not stats.get("running") and not stats.get("waiting"):
                return
            await asyncio.sleep(0.05)

    # --- versions -----------------------------------------------------------------------------------------------------

    async def deliver(self, published: Mapping[str, Any]) -> list[Swap]:
        """Have every engine take up a version that is in the store; returns when all have, or have gone. Engines that
        start meanwhile take it before they serve. Raises what made it impossible for an engine that lives.
        """
        if self.newest is None or published["version"] >= self.newest["version"]:
            self.newest = published
        if self.borrower is not None and self._borrowing is None:
            self._borrowing = self._later(self.borrower.run())  # not before: a lent engine has nothing of the run's
        engines = [each for each in self.engines.values() if each.state in ("serving", "spare")]
        return list(await asyncio.gather(*(self._swap(each, published) for each in engines)))

    async def _swap(self, engine: Engine, published: Mapping[str, Any]) -> Swap:
        told_at, loaded, lost = time.monotonic(), None, False
        try:
            loaded = await self._load(engine, published)
        except EngineGone:
            lost = True
        except EtudeError as error:
            if engine.place is None:
                self.remove(engine, str(error))
                engine.link.kill()
            if engine.state != "gone":
                raise
            lost = True
        return Swap(engine.name, loaded, time.monotonic() - told_at, lost)

    async def _load(self, engine: Engine, published: Mapping[str, Any]) -> Loaded | None:
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
            except EngineGone:
                raise
            except EtudeError:
                newer = self.newest is not None and self.newest["version"] > version
                if engine.state == "gone" or (time.monotonic() >= end and not newer):
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
        if self.borrower is not None and self._borrowing is not None:
            self._borrowing.cancel()
            await self.borrower.close()
        ready = [each for each in self.engines.values() if each.state in ("serving", "spare")]
        await asyncio.gather(*map(self._put_into, ready))

    async def _put_into(self, engine: Engine) -> None:
        assert self._put is not None
        if isinstance(engine.link, RayLink):
            await engine.link.put(*self._put, scaled(self.config.engine.update_s))

    def about(self) -> list[dict[str, Any]]:
        """Every engine: whose it is, what it does, the version it has taken (None: what it was started with), speed."""
        return [
            {
                "engine": each.name, "lent": each.place is None, "state": each.state,
                "version": None if each.loaded is None else int(each.loaded), "root": each.root,
                "tokens_per_s": each.speed, "running": int(each.stats.get("running", 0)),
            }
            for each in self.engines.values()
        ]  # fmt: skip

    # --- telling ------------------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The engines as session workers are to see them."""
        there = [each for each in self.engines.values() if each.state in ("serving", "leaving")]
        speeds = [each.speed for each in there if each.speed]
        middle = sum(speeds) / len(speeds) if speeds else 1.0
        members = (Member(each.name, each.link, each.speed or middle, each.state == "leaving") for each in there)
        known = [f"{each.name} is {each.state}" for each in self.engines.values()]
        failure = None if self.failure is None else str(self.failure)
        return View(self._number, tuple(members), ", ".join([*known, self._loss]).strip(", "), failure)

    def tell(self) -> None:
        """Say to whoever listens which engines there are now."""
        self._number += 1
        view = self.view()
        for listener in self.listeners:
            listener(view)
        self._change()

    async def _beat(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(_BEAT_S)

    async def stats(self) -> dict[str, float]:
        """Counters of all engines that the run ever had, gauges of those it has, `engines` that serve, and the
        `engine_s` they have been there for: `busy_s` over that is the share of it they worked.
        """
        asked = await asyncio.gather(*(self._told(each) for each in self.engines.values() if each.state != "starting"))
        now, total = time.monotonic(), Counter(self._past)
        for each in asked:
            total.update(each)
        serving = [each for each in self.engines.values() if each.state == "serving"]
        there = self._past_s + sum(each.served_s(now) for each in self.engines.values())
        total.update(self.counters)
        if self.borrower is not None:
            total.update(self.borrower.counters)
        return {**total, "engines": len(serving), "engine_s": there}

    def lending(self) -> dict[str, Any] | None:
        """What the product's servers were used for, by both sides, and how soon they were back; None without any."""
        if self.borrower is None:
            return None
        told = {"uses": self.borrower.used(), "longest_giving_back_s": self.borrower.longest_return_s}
        return {**self.borrower.counters, **told}

    async def _told(self, engine: Engine) -> Mapping[str, float]:
        with suppress(EtudeError):  # one that cannot be asked has told this before
            engine.look(await engine.link.stats(scaled(STOP_S)), time.monotonic())
        return engine.stats if engine.name in self.engines else {}

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _until(self, there: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not there():
                    self.raise_if_failed()
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded(what, seconds, self.view().state) from None
        self.raise_if_failed()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _fail(self, error: EtudeError) -> None:
        self.failure = self.failure or error
        self.tell()

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A bug there must end the run: it would wait for engines that never come."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, EtudeError) else EtudeError(f"the fleet failed: {error!r}"))


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

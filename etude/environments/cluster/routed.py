"""Several servers or clusters behind one door: the `routed` backend.

Owns the choice of a place for each new sandbox, and for how long one that failed is passed over. Two places are drawn
and the less busy is taken: that needs no count of everybody's sandboxes, and two callers do not run to the same place
(Mitzenmacher, "The power of two choices in randomized load balancing"). What starts from a snapshot goes where that is.
A sandbox is its place's own; once made, nothing of it comes by here. Training goes on when a place is lost: its
sandboxes end in errors that may be retried, and new ones are made elsewhere.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import structlog
from pydantic import Field

from etude.environments.base import Backend, Capabilities, Sandbox, SandboxSpec, Snapshot
from etude.environments.cluster.config import ClusterConfig
from etude.environments.far import FarBackend
from etude.environments.plugin import BackendTable, Plugin
from etude.environments.remote import RemoteConfig
from etude.environments.wire import ServerError
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, Overloaded, SandboxError

PlaceConfig = Annotated[RemoteConfig | ClusterConfig, Field(discriminator="kind")]
_log = structlog.get_logger()


class RoutedConfig(BackendTable):
    """Places that all offer the same, and how long one is left alone."""

    kind: Literal["routed"] = "routed"
    places: tuple[PlaceConfig, ...] = Field(min_length=1)
    """Tables of kind "remote" or "cluster", which all offer the same."""
    away_s: ClassVar[float] = 30.0
    """How long a place that could not be reached, or was full, gets nothing new while another may."""


class Upstream:
    """One server or cluster, as far as it has been seen from here."""

    def __init__(self, config: RemoteConfig | ClusterConfig) -> None:
        self.config = config
        self.name = config.url if isinstance(config, RemoteConfig) else f"cluster {config.name!r}"
        self.backend: FarBackend | None = None
        self.why = ""
        """Why it is not open, or was left alone last."""
        self.away_until = 0.0
        self.starting = 0
        self.opening = asyncio.Lock()

    @property
    def busy(self) -> int:
        """Starts count twice: where they pile up, more would wait longer still."""
        return 2 * self.starting + (len(self.backend.live) if self.backend else 0)


class RoutedBackend:
    """Makes sandboxes at several places. Opening it needs one of them; the others are taken in when they answer."""

    def __init__(self, config: RoutedConfig, open_place: Callable[[RemoteConfig | ClusterConfig], Any]) -> None:
        self.config, self._open_place = config, open_place
        self.places = [Upstream(each) for each in config.places]
        self._capabilities: Capabilities | None = None
        self._closed = False
        for place in self.places:
            try:
                self._connected(place, open_place(place.config))
            except (SandboxError, DeadlineExceeded) as error:
                self._back_off(place, error)
        if self._capabilities is None:
            raise SandboxError(f"none of the places can be reached: {self._troubles()}")

    @property
    def capabilities(self) -> Capabilities:
        assert self._capabilities is not None  # __init__ saw to it
        return self._capabilities

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox where its snapshot is, or at any place, and at another where that one cannot.

        Raises SandboxError that names every place's trouble when none could."""
        if self._closed:
            raise SandboxError("this backend is closed")
        if spec.base is not None:
            return await self._backend_of(spec.base).create(spec)
        tried: list[Upstream] = []
        while (place := self._choose(tried)) is not None:
            tried.append(place)
            try:
                backend = await self._opened(place)
            except (SandboxError, DeadlineExceeded) as error:
                self._back_off(place, error)
                continue
            place.starting += 1
            try:
                return await backend.create(spec)
            except (SandboxError, DeadlineExceeded) as error:
                if not _another_may(error):
                    raise
                self._back_off(place, error)
            finally:
                place.starting -= 1
        raise SandboxError(f"no place could start a sandbox: {self._troubles()}")

    async def release(self, snapshot: Snapshot) -> None:
        await self._backend_of(snapshot).release(snapshot)

    async def close(self) -> None:
        """Destroy what was made through this object. At a place that cannot be reached its time to live ends it."""
        self._closed = True
        opened = {place.name: place.backend for place in self.places if place.backend is not None}
        ended = await asyncio.gather(*(backend.close() for backend in opened.values()), return_exceptions=True)
        for name, error in zip(opened, ended, strict=True):
            if isinstance(error, DeadlineExceeded):
                _log.warning("sandboxes may be left until their time to live ends", place=name, why=str(error))
            elif isinstance(error, BaseException):
                raise error

    # ----------------------------------------------------------------------------------------------------------------

    def _choose(self, tried: list[Upstream]) -> Upstream | None:
        """The less busy of two that are not left alone; of those that are, the one that has been so for longest."""
        left = [place for place in self.places if place not in tried]
        well = [place for place in left if place.away_until <= time.monotonic()]
        if well:
            return min(random.sample(well, min(2, len(well))), key=lambda place: place.busy)
        return min(left, key=lambda place: place.away_until, default=None)

    async def _opened(self, place: Upstream) -> FarBackend:
        async with place.opening:
            if place.backend is None:
                backend = await asyncio.to_thread(self._open_place, place.config)
                if self._closed:
                    await backend.close()
                    raise SandboxError("this backend was closed meanwhile")
                self._connected(place, backend)
        assert place.backend is not None
        return place.backend

    def _connected(self, place: Upstream, backend: FarBackend) -> None:
        if self._capabilities not in (None, backend.capabilities):
            raise ConfigError(
                f"places: {place.name} offers {backend.capabilities} and another place {self._capabilities}; all must "
                "offer the same: name the `backend` of each"
            )
        self._capabilities, place.backend = backend.capabilities, backend

    def _backend_of(self, snapshot: Snapshot) -> FarBackend:
        for place in self.places:
            if place.backend is not None and place.backend.holds(snapshot):
                return place.backend
        raise ServerError("not_found", f"no snapshot {snapshot.id} is known here; it was released or never made")

    def _back_off(self, place: Upstream, error: EtudeError) -> None:
        place.why, place.away_until = str(error), time.monotonic() + self.config.away_s
        _log.warning("a place is left alone", place=place.name, seconds=self.config.away_s, why=place.why)

    def _troubles(self) -> str:
        return "; ".join(f"{place.name}: {place.why}" for place in self.places)


def _another_may(error: EtudeError) -> bool:
    """Whether what this place could not do, another may."""
    return isinstance(error, (DeadlineExceeded, Overloaded)) or (isinstance(error, ServerError) and error.retryable)


def _open(config: RoutedConfig) -> Backend:
    from etude.environments.backends import open_backend

    return RoutedBackend(config, open_backend)


PLUGIN = Plugin(RoutedConfig, _open)

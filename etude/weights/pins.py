"""Pins: versions that retention must leave fetchable, for a rollback, an A/B test, or because an engine serves them.

Owns the objects `pins/00000012/<name>`, each a small JSON document of who holds the version, why and until when. A pin
with an end is a lease: its holder renews it, and one that died lets go by itself. Setting a pin and deleting what it
protects cannot both succeed: retention first marks every version that it is about to touch, then looks for pins; who
pins first writes the pin, then looks for marks (`set`). Never deletes anything but pins. Talks to: chain, paths.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import GOING, MANIFEST, Chain
from etude.weights.paths import Listing, path_from_nothing
from etude.weights.store import MissingObject

_PREFIX = "pins/"
_KEY = re.compile(r"^pins/(\d{8,})/([^/]+)$")
_NAME = re.compile(r"^[A-Za-z0-9._-]{1,100}$")
LEASE = "lease-"
"""What the names of leases begin with."""
_MOST_BYTES = 1 << 16
_POLL_S = 0.1
_ENOUGH_S = 60.0
"""A pin that still holds for so long holds while it is written anew."""


class NotHeld(WeightError):
    """A version could not be pinned, for it is gone or going."""


@dataclass(frozen=True)
class Pin:
    """Somebody's hold on a version; for good if there is no `until` (seconds since 1970)."""

    version: Version
    name: str
    until: float | None = None
    why: str = ""

    @property
    def is_lease(self) -> bool:
        """Whether a reader holds it that will look again."""
        return self.name.startswith(LEASE)


class _Body(BaseModel):
    """A pin as it is stored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    until: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | None
    why: Annotated[str, Field(max_length=1000)]


class Pins:
    """The pins in one store."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def live(self) -> list[Pin]:
        """Every pin that has not run out, by version and name. One that cannot be read holds for good."""
        keys = [(match, key) for key in self._chain.store.list(_PREFIX) if (match := _KEY.match(key))]
        pins = [self._read(Version(int(match[1])), match[2], key) for match, key in sorted(keys, key=lambda k: k[1])]
        return [pin for pin in pins if pin.until is None or pin.until > time.time()]

    def set(self, version: Version, name: str, why: str = "", for_s: float | None = None, wait_s: float = 10.0) -> Pin:
        """Hold a version, or hold it longer; when this returns, retention keeps it. Raises NotHeld if it is gone,
        DeadlineExceeded if retention stays at work on it, and then leaves no pin.
        """
        if not _NAME.match(name):
            raise WeightError(f"a pin cannot be called {name!r}: use letters, digits, '.', '_' and '-', 100 at most")
        pin = Pin(version, name, None if for_s is None else time.time() + for_s, why)
        body, key = _Body(until=pin.until, why=why), _key(version, name)
        held = self._read(version, name, key) if self._chain.store.exists(key) else None
        self._chain.store.put(key, body.model_dump_json().encode())
        if held is not None and (held.until is None or held.until > time.time() + _ENOUGH_S):
            return pin
        try:
            self._wait_until_safe(version, wait_s)
        except (WeightError, DeadlineExceeded):
            self.remove(version, name)
            raise
        return pin

    def remove(self, version: Version, name: str) -> None:
        """Let go; a pin that is not there is fine."""
        self._chain.store.delete(_key(version, name))

    def _wait_until_safe(self, version: Version, wait_s: float) -> None:
        """Return once the version is visible, and reachable without anything that retention has marked."""
        started = time.monotonic()
        while True:
            listing = self._chain.listing()
            if MANIFEST not in listing.get(version, {}):
                raise NotHeld(f"{self._chain.store.url} has no version {version}, so it cannot be pinned")
            unmarked = {found: names for found, names in listing.items() if GOING not in names}
            if len(unmarked) == len(listing) or self._reachable(unmarked, version):
                return  # what is visible is reachable: retention sees to that
            if time.monotonic() - started >= wait_s:
                hint = "its publisher is deleting, or died while it did: try again after the next version"
                raise DeadlineExceeded(f"retention to be done beside version {version}", wait_s, hint)
            time.sleep(_POLL_S)

    def _reachable(self, listing: Listing, version: Version) -> bool:
        try:
            way_there = path_from_nothing(listing, version, lambda step: self._chain.parent(step.version, step.name))
        except MissingObject:
            return False  # deleted since it was listed
        return version in listing and way_there is not None

    def _read(self, version: Version, name: str, key: str) -> Pin:
        try:
            body = _Body.model_validate_json(self._chain.store.get(key, _MOST_BYTES))
        except (WeightError, ValidationError):
            return Pin(version, name, None, "unreadable")
        return Pin(version, name, body.until, body.why)


def _key(version: Version, name: str) -> str:
    return f"{_PREFIX}{version:08d}/{name}"

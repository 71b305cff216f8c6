"""Takes versions from a store: the cheapest way from what is held to what is wanted, verified before it is returned.

Owns planning and the shadow copy: deltas are decoded into copies, and the caller's arrays are never written. A result
is returned only after the base had the root its first delta names, every payload and every resulting tensor had its
hash, each delta's parent root was the root of the one before, and the last root was the wanted version's. A delta or
full copy that fails any of this is gone round if there is another way. Never publishes. Talks to: chain, paths, delta.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field

from etude.config import Config
from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import MANIFEST, Chain, Choice
from etude.weights.delta import apply_delta, check_bits, copy_bits, memory_bytes, zeros_for
from etude.weights.forms import Array
from etude.weights.manifest import Bits, Delta, root_of
from etude.weights.paths import Step, broken_below, path_from_nothing, path_to
from etude.weights.pins import LEASE, NotHeld, Pins
from etude.weights.signing import Keys, load_keys
from etude.weights.slices import chosen
from etude.weights.store import MissingObject, Store


class _Stride(NamedTuple):
    step: Step
    delta: Delta


class WrongBase(WeightError):
    """The weights held are not the version that they are held as: another run's, or from before a rewind."""


class _StepFailed(Exception):
    """A delta or full copy on the way could not be used."""

    def __init__(self, step: Step, error: WeightError) -> None:
        super().__init__(str(error))
        self.step, self.error = step, error


POLL_S = 0.05
"""Pause between two looks at the store while waiting for a version: a listing costs a remote store about as long."""


class SubscriberConfig(Config):
    """What is read, how it is checked, and in how many threads."""

    max_raw_bytes: ClassVar[int] = memory_bytes()
    """Largest model accepted: a forged manifest cannot make this process allocate more."""
    threads: int = Field(1, ge=1)
    """Tensors of a version that are decoded at the same time."""
    slices: tuple[str, ...] = ()
    """Coordinates of the slices that this replica serves, such as "3of8"; tensors that are not cut come with any. Only
    their chunks are fetched, and the root is theirs. Empty: everything.
    """
    trusted_keys: tuple[Path, ...] = ()
    """Public keys (PEM, Ed25519): with any, a manifest that none of them signed is refused."""
    lease_s: float | None = Field(None, gt=0)
    """With it, the version last fetched is held against retention (`pins`) for so long, and let go at the next fetch:
    however far its reader falls behind, merged deltas lead on from there. Needs the right to write to the store.
    """


@dataclass(frozen=True)
class FetchResult:
    """What a fetch did. `path` lists the versions gone through; it starts with a full copy if `from_anchor`."""

    version: Version
    root: str
    path: tuple[Version, ...]
    from_anchor: bool
    payload_bytes: int
    time: float
    """When the version became visible, in Unix time by its publisher's clock."""


class Subscriber:
    """Reads one store. Use it from one thread at a time.

    `keys` stand in for those that the config names, and `choose` for its `slices`.

    `counters`: applied_deltas, applied_anchors, applied_bytes, root_checks, refetches (an object was read again because
    it was damaged), detours (another way was taken round an object that stayed damaged or missing), leases, and
    leases_missed (retention was quicker).
    """

    def __init__(
        self,
        store: Store,
        config: SubscriberConfig | None = None,
        keys: Keys | None = None,
        choose: Choice | None = None,
    ) -> None:
        self.config = config or SubscriberConfig()
        if self.config.slices:
            choose = partial(chosen, coordinates=self.config.slices)
        self.chain = Chain(store, keys or load_keys(trusted=self.config.trusted_keys), choose)
        self.counters: Counter[str] = self.chain.counters
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
        self._pins, self._lease = Pins(self.chain), f"{LEASE}{host}-{secrets.token_hex(6)}"
        self._leased: Version | None = None

    def latest(self) -> Version:
        """The newest visible version. Raises WeightError if there is none."""
        versions = self.chain.versions()
        if not versions:
            raise WeightError(f"{self.chain.store.url} holds no version yet; publish one, or check the URL")
        return versions[-1]

    def wait_for(self, version: Version, timeout_s: float) -> None:
        """Wait until `version` is visible. Raises DeadlineExceeded."""
        started = time.monotonic()
        while not self.chain.visible(version):
            if time.monotonic() - started >= timeout_s:
                newest = self.chain.versions()[-1:]
                hint = f"the newest is {newest[0]}" if newest else "nothing is published there"
                raise DeadlineExceeded(f"version {version} in {self.chain.store.url}", timeout_s, hint)
            time.sleep(min(POLL_S, timeout_s))

    def fetch(
        self, current_bits: Mapping[str, Array] | None, current_version: Version | None, target: Version
    ) -> tuple[Bits, FetchResult]:
        """The bits of `target`, in arrays of their own, from the held version (None, None: from a full copy).

        Raises WeightError, with `current_bits` as they were, if the version is gone, its chain is broken or forked, the
        held bits are not what the chain's deltas start from, or anything read stays damaged when read again.
        """
        if (current_bits is None) != (current_version is None):
            raise ValueError("current_bits and current_version go together")
        held = None if current_version is None else (current_version, self._root(current_bits or {}))
        try:
            wanted = self.chain.manifest(target)
        except MissingObject as error:
            raise WeightError(f"version {target} is not whole: {error}; take another version") from None
        failed: dict[Step, WeightError] = {}
        missed: set[Step] = set()
        while True:
            try:
                path = self._plan(held and held[0], wanted, frozenset(failed))
                if path is None:
                    raise self._no_way(held and held[0], target, failed)
                shadow = self._start(path, wanted.root, current_bits or {}, held)
                result = self._walk(path, shadow, wanted)
                self._renew(target)
                return result
            except _StepFailed as failure:
                gone = isinstance(failure.error, MissingObject)
                if failure.step in failed:
                    raise failure.error from None
                if gone and failure.step not in missed:
                    missed.add(failure.step)  # retention may have overtaken the listing: look once more
                else:
                    failed[failure.step] = failure.error
                    self.counters["detours"] += 1

    def _renew(self, version: Version) -> None:
        """Hold the version now in use, and no longer the one before."""
        if self.config.lease_s is None:
            return
        try:
            self._pins.set(version, self._lease, "in use", self.config.lease_s, wait_s=1.0)
            self.counters["leases"] += 1
        except (NotHeld, DeadlineExceeded):  # what was fetched is whole all the same; from here on a full copy leads
            self.counters["leases_missed"] += 1
        if self._leased is not None and self._leased != version:
            self._pins.remove(self._leased, self._lease)
        self._leased = version

    def _root(self, bits: Mapping[str, Array]) -> str:
        check_bits(bits)
        self.counters["root_checks"] += 1
        return root_of(bits)

    def _plan(self, held: Version | None, wanted: Delta, failed: frozenset[Step]) -> list[_Stride] | None:
        """What leads from `held` or a full copy to the wanted version in fewest bytes, in order of use; none if it is
        held. None if nothing does without the steps that have `failed`.
        """
        target = Version(wanted.version)
        if held == target:
            return []
        listing, read = self.chain.listing(), _Reader(self.chain, wanted)
        ways = []
        if (
            held is not None
            and held < target
            and (on := path_to(listing, target, held, read.parent, failed)) is not None
        ):
            ways.append([_Stride(step, read(step)) for step in on])
            if 2 * _bytes(ways[0]) <= wanted.raw_bytes:
                return ways[0]  # no full copy is that small: its manifests need not be read
        if (afresh := path_from_nothing(listing, target, read.parent, failed)) is not None:
            ways.append([_Stride(step, read(step)) for step in afresh])
        return min(ways, key=_bytes, default=None)

    def _no_way(self, held: Version | None, target: Version, failed: Mapping[Step, WeightError]) -> WeightError:
        for error in failed.values():
            if isinstance(error, MissingObject):
                return WeightError(f"version {target} is not whole: {error}; take another version")
            return error
        start = "a full copy" if held is None else f"version {held} or a full copy"
        reached = broken_below(self.chain.listing(), target, held or Version(0), _Reader(self.chain).parent)
        return WeightError(
            f"{self.chain.store.url}: no way from {start} to version {target}: the chain is broken below version "
            f"{reached}; take a newer version, or have the trainer publish an anchor"
        )

    def _start(
        self, path: list[_Stride], wanted: str, bits: Mapping[str, Array], held: tuple[Version, str] | None
    ) -> Bits:
        """What the path's first step is applied to, in arrays of its own."""
        first = path[0].delta if path else None
        if first is not None and first.parent is None:
            return zeros_for(first, self.config.max_raw_bytes)
        version, root = held or (None, None)
        expected = wanted if first is None else first.parent_root
        if root != expected:
            raise WrongBase(
                f"the weights held as version {version} have the root {root} and the chain in {self.chain.store.url} "
                f"has {expected}: they come from another run, or from before a rewind; fetch again without a base"
            )
        return copy_bits(bits)

    def _walk(self, path: list[_Stride], shadow: Bits, wanted: Delta) -> tuple[Bits, FetchResult]:
        for before, (step, delta) in zip([None, *path], path, strict=False):
            if before is not None and delta.parent_root != before.delta.root:
                raise _StepFailed(step, self._forked(delta, before.delta))
            try:
                apply_delta(delta, self.chain.payloads(delta), shadow, self.config.threads)
            except WeightError as error:
                raise _StepFailed(step, error) from None
            self.counters["applied_anchors" if delta.parent is None else "applied_deltas"] += 1
            self.counters["applied_bytes"] += delta.payload_bytes
        target, root = Version(wanted.version), self._root(shadow)
        if root != wanted.root:
            lied = f"version {target}: the result has the root {root}, not {wanted.root}; nothing of it was served"
            raise _StepFailed(path[-1].step, WeightError(lied))
        versions = tuple(Version(delta.version) for _, delta in path)
        from_anchor = bool(path) and path[0].delta.parent is None
        return shadow, FetchResult(target, root, versions, from_anchor, _bytes(path), wanted.time)

    def _forked(self, delta: Delta, before: Delta) -> WeightError:
        return WeightError(
            f"{self.chain.store.url}: version {delta.version} was made from another version {before.version} than the "
            "one stored (its parent root differs): the chain was forked; rewind it below that version"
        )


class _Reader:
    """Manifests, each read once; what is wrong with one is said of its step."""

    def __init__(self, chain: Chain, known: Delta | None = None) -> None:
        """`known`: a version's own manifest."""
        self._chain = chain
        self._read = {} if known is None else {Step(Version(known.version), MANIFEST): known}

    def __call__(self, step: Step) -> Delta:
        if step not in self._read:
            try:
                self._read[step] = self._chain.manifest(step.version, step.name)
            except WeightError as error:
                raise _StepFailed(step, error) from None
        return self._read[step]

    def parent(self, step: Step) -> Version | None:
        if step.name != MANIFEST:
            return self._chain.parent(step.version, step.name)
        parent = self(step).parent
        return None if parent is None else Version(parent)


def _bytes(path: list[_Stride]) -> int:
    return sum(delta.payload_bytes for _, delta in path)

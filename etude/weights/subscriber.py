"""Takes versions from a store: the cheapest way from what is held to what is wanted, verified before it is returned.

Owns planning and the shadow copy: deltas are decoded into copies, and the caller's arrays are never written. A result
is returned only after the base had the root its first delta names, every payload and every resulting tensor had its
hash, each delta's parent root was the root of the one before, and the last root was the wanted version's. Never
publishes. Talks to: chain, delta.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from etude.config import Config
from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import ANCHOR, MANIFEST, Chain, merged_name, merged_parent
from etude.weights.delta import apply_delta, check_bits, copy_bits, zeros_for
from etude.weights.manifest import U16, Bits, Delta, root_of
from etude.weights.store import MissingObject, Store

Listing = dict[Version, dict[str, int]]
_ATTEMPTS = 3
"""Plans made for one fetch: while it reads, retention may delete the versions that a plan goes through."""


class SubscriberConfig(Config):
    poll_s: float = 0.05
    """Pause between two looks at the store while waiting for a version."""
    max_raw_bytes: int = 64 << 30
    """Largest model accepted: a forged manifest cannot make this process allocate more."""


@dataclass(frozen=True)
class FetchResult:
    """What a fetch did. `path` lists the versions gone through; it starts with a full copy if `from_anchor`."""

    version: Version
    root: str
    path: tuple[Version, ...]
    from_anchor: bool
    payload_bytes: int


class Subscriber:
    """Reads one store. Use it from one thread at a time.

    `counters`: applied_deltas, applied_anchors, applied_bytes, root_checks, refetches.
    """

    def __init__(self, store: Store, config: SubscriberConfig | None = None) -> None:
        self.config = config or SubscriberConfig()
        self.chain = Chain(store)
        self.counters: Counter[str] = self.chain.counters

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
            time.sleep(min(self.config.poll_s, timeout_s))

    def fetch(
        self, current_bits: Mapping[str, U16] | None, current_version: Version | None, target: Version
    ) -> tuple[Bits, FetchResult]:
        """The bits of `target`, in arrays of their own, from the held version (None, None: from a full copy).

        Raises WeightError, with `current_bits` as they were, if the version is gone, its chain is broken or forked, the
        held bits are not what the chain's deltas start from, or anything read stays damaged when read again.
        """
        if (current_bits is None) != (current_version is None):
            raise ValueError("current_bits and current_version go together")
        root = self._root(current_bits) if current_bits is not None else None
        for attempt in range(_ATTEMPTS):
            try:
                path = self._plan(current_version, target)
                if path and path[0].parent is None:
                    return self._walk(path, zeros_for(path[0], self.config.max_raw_bytes), target)
                base_root = path[0].parent_root if path else self.chain.manifest(target).root
                if root != base_root:
                    raise WeightError(
                        f"the weights held as version {current_version} have the root {root} and the chain in "
                        f"{self.chain.store.url} has {base_root}: they come from another run, or from before a rewind; "
                        "fetch again without a base"
                    )
                return self._walk(path, copy_bits(current_bits or {}), target)
            except MissingObject as error:
                if attempt == _ATTEMPTS - 1:
                    raise WeightError(f"version {target} is not whole: {error}; take another version") from None
        raise AssertionError("unreachable")

    def _root(self, bits: Mapping[str, U16]) -> str:
        check_bits(bits)
        self.counters["root_checks"] += 1
        return root_of(bits)

    def _plan(self, held: Version | None, target: Version) -> list[Delta]:
        """The deltas of fewest bytes from `held` or a full copy, in order of use; none if `target` is held."""
        if held == target:
            return []
        delta = self.chain.manifest(target)
        if delta.parent in (held, None):
            return [delta]
        listing = self.chain.listing()
        ways = []
        if held is not None and held < target:
            back, reached = self._back(listing, target, held)
            ways += [back] if reached == held else []
        full = self._newest_full_copy(listing, target)
        if full is not None:
            back, reached = self._back(listing, target, Version(full.version))
            ways += [[*back, full]] if reached == full.version else []
        if not ways:
            start = "a full copy" if held is None else f"version {held} or a full copy"
            _, reached = self._back(listing, target, Version(0) if held is None else held)
            raise WeightError(
                f"{self.chain.store.url}: no way from {start} to version {target}: the chain is broken below version "
                f"{reached}; take a newer version, or have the trainer publish an anchor"
            )
        return min(ways, key=_bytes)[::-1]

    def _back(self, listing: Listing, target: Version, start: Version) -> tuple[list[Delta], Version]:
        """Deltas from `target` back towards `start`, by the longest strides that do not pass it; and how far they got.

        A merged delta is never longer than those it spans, so the longest stride is nearly always the shortest way.
        """
        version, back = target, []
        while version > start and MANIFEST in listing.get(version, {}):
            strides = [parent for name in listing[version] if (parent := merged_parent(name)) is not None]
            furthest = min((parent for parent in strides if parent >= start), default=None)
            delta = self.chain.manifest(version, MANIFEST if furthest is None else merged_name(furthest))
            if delta.parent is None or delta.parent < start:
                break
            back, version = [*back, delta], Version(delta.parent)
        return back, version

    def _newest_full_copy(self, listing: Listing, target: Version) -> Delta | None:
        """An anchor at or below `target`; without one, the oldest version, if it is a full copy itself."""
        anchors = [version for version, names in listing.items() if {ANCHOR, MANIFEST} <= names.keys()]
        newest = max((version for version in anchors if version <= target), default=None)
        if newest is not None:
            return self.chain.manifest(newest, ANCHOR)
        oldest = min((version for version, names in listing.items() if MANIFEST in names), default=target)
        delta = self.chain.manifest(oldest)
        return delta if delta.parent is None else None

    def _walk(self, path: list[Delta], shadow: Bits, target: Version) -> tuple[Bits, FetchResult]:
        for before, delta in zip([None, *path], path, strict=False):
            if before is not None and delta.parent_root != before.root:
                raise WeightError(
                    f"{self.chain.store.url}: version {delta.version} was made from another version {before.version} "
                    "than the one stored (its parent root differs): the chain was forked; rewind it below that version"
                )
            apply_delta(delta, self.chain.pack(delta), shadow)
            self.counters["applied_anchors" if delta.parent is None else "applied_deltas"] += 1
            self.counters["applied_bytes"] += delta.pack.size
        root = path[-1].root if path else self.chain.manifest(target).root
        if self._root(shadow) != root:
            raise WeightError(f"version {target}: the result does not have the root {root}; nothing of it was served")
        versions = tuple(Version(delta.version) for delta in path)
        from_anchor = bool(path) and path[0].parent is None
        return shadow, FetchResult(target, root, versions, from_anchor, _bytes(path))


def _bytes(path: list[Delta]) -> int:
    return sum(delta.pack.size for delta in path)

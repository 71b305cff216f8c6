"""What a store keeps of a chain, and what goes: the newest versions whole, pinned ones fetchable, the rest thinned out.

Owns the choice and the order of deletion. Kept are the newest `keep` versions with everything beside them; every pinned
version, with its manifest; a way from a full copy to each of these; and from each pinned version to the newest ones,
while that is shorter than a full copy. Paths prefer long strides (`paths`), so below the newest versions single deltas
give way to merged ones, and these to anchors. What is kept never needs what goes, whatever the order; what goes goes
newest first and manifests before packs, so a version that is still visible can still be reached when this is killed
anywhere. Versions are marked before anything of them is deleted (`pins` says why). Talks to: chain, pins, paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from etude.records import Version
from etude.weights.chain import GOING, MANIFEST, Chain, DamagedObject, merged_parent, steps_of
from etude.weights.paths import Listing, Step, path_from_nothing, path_to
from etude.weights.pins import Pins
from etude.weights.store import MissingObject


@dataclass(frozen=True)
class Swept:
    """What one sweep deleted: `versions` are no longer offered. `damaged`: nothing was, for this manifest could not be
    read.
    """

    versions: int = 0
    bytes: int = 0
    damaged: str = ""


@dataclass(frozen=True)
class _Fact:
    """What a manifest says that its name does not."""

    parent: Version | None
    packs: frozenset[str]
    size: int


class Retention:
    """Sweeps one store; remembers what it read of manifests, which never change until `forget`."""

    def __init__(self, chain: Chain, keep: int) -> None:
        self._chain, self._keep, self._pins = chain, keep, Pins(chain)
        self._facts: dict[Step, _Fact] = {}

    def forget(self) -> None:
        """Manifests may have been replaced: by a rewind, or by another publisher."""
        self._facts.clear()
        self._chain.id = None

    def sweep(self) -> Swept:
        """Delete what nobody needs. A damaged chain is left as it is: somebody will want to look at it."""
        listing = self._chain.listing()
        try:
            going = self._going(listing)
            for version in going:
                self._chain.mark(version)
            still = self._going(listing)  # pins set since: whoever sets one from here on sees the marks
        except (DamagedObject, MissingObject) as error:
            return Swept(damaged=str(error))
        swept = Swept()
        for version in sorted(going, reverse=True):
            if version in still:
                swept = self._thin(version, listing, going[version] | still[version], swept)
            self._chain.unmark(version)
        self._facts = {step: fact for step, fact in self._facts.items() if step.name in listing.get(step.version, {})}
        return swept

    def _going(self, listing: Listing) -> dict[Version, frozenset[str]]:
        """The versions to be touched, and the names of the manifests beside them that stay."""
        visible = [version for version, names in listing.items() if MANIFEST in names]
        recent = visible[-self._keep :]
        if not recent:
            return {}
        needed = {Step(version, MANIFEST) for version in recent}
        held = {pin.version for pin in self._pins.live()} & {version for version in visible if version < recent[0]}
        for version in [*held, *recent]:
            way_there = path_from_nothing(listing, version, self._parent)
            if way_there is None and version in recent:
                return {}  # what is wanted most cannot be reached: nothing may get lost that could mend it
            needed |= {Step(version, MANIFEST), *(way_there or [])}
        for version in held:
            needed |= self._way_on(listing, version, recent[0])
        kept: dict[Version, set[str]] = {}
        for step in needed:
            kept.setdefault(step.version, set()).add(step.name)
        old = {version: names for version, names in listing.items() if version < recent[0]}
        return {
            v: frozenset(kept.get(v, ())) for v, names in old.items() if self._superfluous(v, names, kept.get(v, ()))
        }

    def _way_on(self, listing: Listing, version: Version, to: Version) -> set[Step]:
        """The way from a pinned version to the oldest of the newest ones, if a reader there would take it."""
        on, afresh = path_to(listing, to, version, self._parent), path_from_nothing(listing, to, self._parent)
        return set(on) if on is not None and afresh is not None and self._bytes(on) <= self._bytes(afresh) else set()

    def _superfluous(self, version: Version, names: Iterable[str], kept: Iterable[str]) -> set[str]:
        """The names of a version's objects that nothing kept needs."""
        packs = {pack for name in kept for pack in self._fact(Step(version, name)).packs}
        return set(names) - set(kept) - packs

    def _thin(self, version: Version, listing: Listing, kept: frozenset[str], swept: Swept) -> Swept:
        names = listing[version]
        superfluous = self._superfluous(version, names, kept)
        if kept:
            manifests = steps_of(superfluous)
            self._chain.delete(version, [*manifests, *(superfluous - {GOING, *manifests})])
        else:
            self._chain.remove(version)
        gone = MANIFEST in superfluous
        return Swept(swept.versions + gone, swept.bytes + sum(names[name] for name in superfluous))

    def _parent(self, step: Step) -> Version | None:
        parent = merged_parent(step.name)
        return parent if parent is not None else self._fact(step).parent

    def _bytes(self, steps: Iterable[Step]) -> int:
        return sum(self._fact(step).size for step in steps)

    def _fact(self, step: Step) -> _Fact:
        if step not in self._facts:
            delta = self._chain.manifest(step.version, step.name)
            parent = None if delta.parent is None else Version(delta.parent)
            packs = frozenset(f"{pack.hash}.pack" for pack in delta.packs)
            self._facts[step] = _Fact(parent, packs, delta.payload_bytes)
        return self._facts[step]

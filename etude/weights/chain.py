"""The chain of versions in a store: where each object lies, and checked reads of them.

Owns the layout. A version is visible exactly when its `manifest` is there, and that is written last and only once:

    versions/00000012/<hash>.pack   payloads, named by their BLAKE3, so that two writers never overwrite each other's
    versions/00000012/manifest      the delta from the version before; of the first version, a full copy
    versions/00000012/from-00000004 optional: the manifest of one delta over several versions, for who comes late
    versions/00000012/anchor        optional: the manifest of a full copy of the same version, for who holds nothing
    versions/00000012/going         while retention deletes something of this version; empty

A version whose `manifest` was thinned out is not offered any more, but may still be a stepping stone: the merged deltas
and anchors beside it serve who passes through. Reads check signatures and hashes, and fetch once more what was damaged
on the way. Never decodes (`delta`). Talks to: store, signing.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from etude.errors import WeightError
from etude.records import Version
from etude.weights.blocks import Wanted, read_spans
from etude.weights.manifest import MOST_MANIFEST_BYTES, Delta, Pack, Tensor, dump, load, short_hash_of
from etude.weights.signing import Keys, signer_of
from etude.weights.store import MissingObject, Store

T = TypeVar("T")
Choice = Callable[[list[str]], Collection[str]]
"""Which of all the tensors of a version are wanted."""
MANIFEST, ANCHOR, GOING = "manifest", "anchor", "going"
_RECOVER = (
    "reading it again gave the same: restore the object, or take the chain back below this version "
    "(`etude weights rewind`)"
)
_MERGED = re.compile(r"^from-(\d{8,})$")
_KEY = re.compile(r"^versions/(\d{8,})/([^/]+)$")


class DamagedObject(WeightError):
    """A manifest or pack is not what was published, though it was read twice; another way may avoid it."""


class Chain:
    """The versions in one store.

    Holds the chain's id, once a manifest has told it: a manifest of another chain is refused from then on. With
    `choose`, it is the chain of some of the tensors: manifests, roots and payloads are theirs.
    """

    def __init__(self, store: Store, keys: Keys | None = None, choose: Choice | None = None) -> None:
        self.store, self.keys, self.choose = store, keys or Keys(), choose
        self.id: str | None = None
        self.counters: Counter[str] = Counter()

    # --- reading ------------------------------------------------------------------------------------------------------

    def listing(self) -> dict[Version, dict[str, int]]:
        """Every version that has any object, visible or not: object name → size. Ascending."""
        found: dict[Version, dict[str, int]] = {}
        for key, size in self.store.list("versions/").items():
            if match := _KEY.match(key):
                found.setdefault(Version(int(match[1])), {})[match[2]] = size
        return dict(sorted(found.items()))

    def versions(self) -> list[Version]:
        """The visible versions, ascending."""
        return [version for version, names in self.listing().items() if MANIFEST in names]

    def visible(self, version: Version) -> bool:
        return self.store.exists(key_of(version, MANIFEST))

    def manifest(self, version: Version, name: str = MANIFEST) -> Delta:
        """A version's manifest, or its anchor's, or a merged delta's. Raises MissingObject, or DamagedObject if twice
        it was not what this chain's publisher would have written there.
        """
        key = key_of(version, name)
        where = f"{self.store.url}/{key}"

        def read(again: bool) -> Delta:
            delta = load(self.keys.open(self.store.get(key, MOST_MANIFEST_BYTES, again=again), where), where)
            wrong_parent = name != MANIFEST and delta.parent != merged_parent(name)
            if delta.version != version or wrong_parent:
                raise WeightError(
                    f"{where} holds the manifest of version {delta.version} with parent {delta.parent}: "
                    "it was moved or replayed; restore the store, or start a new one"
                )
            if delta.chain != (self.id or delta.chain):
                raise WeightError(
                    f"{where} belongs to chain {delta.chain}, and what was read before to {self.id}: the store was "
                    "replaced, or a manifest was brought from another run; restore it, or start this process anew"
                )
            return delta

        delta = self._twice(read)
        self.id = delta.chain
        return delta if self.choose is None else delta.part(self.choose([tensor.name for tensor in delta.tensors]))

    def parent(self, version: Version, name: str) -> Version | None:
        """Which version a delta starts from, None for a full copy; read only if its name does not tell. Raises what
        `manifest` does.
        """
        parent = merged_parent(name)
        if parent is not None or name == ANCHOR:
            return parent
        parent = self.manifest(version).parent
        return None if parent is None else Version(parent)

    def signer(self, version: Version) -> bytes | None:
        """The public key that a version's manifest says signed it, which `manifest` checks; None if unsigned."""
        key = key_of(version, MANIFEST)
        return signer_of(self.store.get(key, MOST_MANIFEST_BYTES), f"{self.store.url}/{key}")

    def payloads(self, delta: Delta) -> dict[str, memoryview]:
        """Each tensor's payloads, end to end, every one checked. Raises MissingObject, DamagedObject if damaged twice.

        Reads no more of a pack than its tensors in `delta` need, but for the rest of the first and last block.
        """
        found = self._unchecked(delta, delta.tensors)
        if damaged := [tensor for tensor in delta.tensors if _damage(tensor, found[tensor.name])]:
            self.counters["refetches"] += 1
            found |= self._unchecked(delta, damaged, again=True)
        for tensor in damaged:
            if where := _damage(tensor, found[tensor.name]):
                key = pack_key(Version(delta.version), delta.packs[tensor.pack])
                raise DamagedObject(f"{self.store.url}/{key}: the payload of {where} is corrupt; {_RECOVER}")
        return found

    def _unchecked(self, delta: Delta, tensors: Iterable[Tensor], again: bool = False) -> dict[str, memoryview]:
        """The payloads of some tensors from all packs side by side."""
        of_pack: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            of_pack.setdefault(tensor.pack, []).append(tensor)
        packs = {at: delta.packs[at] for at in of_pack}
        version = Version(delta.version)
        wanted = [
            Wanted(pack_key(version, pack), pack.size, [t.span for t in of_pack[at]]) for at, pack in packs.items()
        ]
        views = read_spans(self.store, wanted, again=again)
        return {
            tensor.name: view
            for found, own in zip(views, of_pack.values(), strict=True)
            for tensor, view in zip(own, found, strict=True)
        }

    def _twice(self, read: Callable[[bool], T]) -> T:
        try:
            return read(False)
        except MissingObject:
            raise
        except WeightError:
            self.counters["refetches"] += 1
        try:
            return read(True)
        except MissingObject:
            raise
        except WeightError as error:
            raise DamagedObject(str(error)) from None

    def new_id(self) -> str:
        """The id of a chain that begins here."""
        return secrets.token_hex(16)

    # --- writing ------------------------------------------------------------------------------------------------------

    def put(self, version: Version, pack: Pack, data: bytearray) -> None:
        """Store a pack of a version, before the manifest that tells of it."""
        self.store.put(pack_key(version, pack), data)

    def write(self, delta: Delta, name: str = MANIFEST) -> bool:
        """Store the manifest of packs that are there. False, with nothing made visible, if there is another one."""
        key, sealed = key_of(Version(delta.version), name), self.keys.seal(dump(delta))
        if self.store.put(key, sealed, create=True):
            return True
        return self.store.get(key, MOST_MANIFEST_BYTES) == sealed  # written, but its answer was lost, and tried again

    def remove(self, version: Version) -> None:
        """Delete a version: first what makes it visible, so that no manifest outlives its pack."""
        prefix = f"versions/{version:08d}/"
        self.store.delete(prefix + MANIFEST)
        for key in self.store.list(prefix):
            if not key.endswith((".pack", GOING)):
                self.store.delete(key)
        self.store.delete_under(prefix)

    def delete(self, version: Version, names: Iterable[str]) -> None:
        """Delete some of a version's objects, in this order."""
        for name in names:
            self.store.delete(key_of(version, name))

    def mark(self, version: Version) -> None:
        """Announce that something of this version is about to be deleted."""
        self.store.put(key_of(version, GOING), b"")

    def unmark(self, version: Version) -> None:
        self.store.delete(key_of(version, GOING))


def merged_name(parent: Version) -> str:
    """The name of a manifest whose delta starts from a `parent` further back."""
    return f"from-{parent:08d}"


def merged_parent(name: str) -> Version | None:
    """Which version a manifest of that name starts from; None for any other name."""
    match = _MERGED.match(name)
    return Version(int(match[1])) if match else None


def steps_of(names: Iterable[str]) -> list[str]:
    """Those names that are manifests: of the version's own delta first, of merged ones, of a full copy."""
    found = [name for name in names if name in (MANIFEST, ANCHOR) or merged_parent(name) is not None]
    return sorted(found, key=lambda name: (name != MANIFEST, name))


def key_of(version: Version, name: str) -> str:
    return f"versions/{version:08d}/{name}"


def pack_key(version: Version, pack: Pack) -> str:
    return key_of(version, f"{pack.hash}.pack")


def _damage(tensor: Tensor, payloads: memoryview) -> str | None:
    """Where the payloads are not those that were published."""
    begins, _ = tensor.span
    for chunk in tensor.chunks:
        if short_hash_of(payloads[chunk.offset - begins : chunk.offset - begins + chunk.size]) != chunk.hash:
            return f"{tensor.name}, elements {chunk.start}:{chunk.stop}"
    return None

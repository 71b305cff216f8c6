"""Publishes versions to a store: one delta each against the one before, full copies where config asks, and rollbacks.

Owns the writing side of the chain. The bits last published are kept in memory, and advance only once a manifest is
visible, so a failed or killed publish leaves the version before intact and can simply be done again. One publisher
writes to a store at a time; should a second one appear, exactly one of them gets each version, and the other is told.
Talks to: chain, delta, retention, pins, and subscriber to find the last state after a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.errors import WeightError
from etude.records import Version
from etude.weights.chain import ANCHOR, MANIFEST, Chain, merged_name
from etude.weights.codecs import Policy
from etude.weights.delta import Held, check_bits, contiguous_bits, copy_bits, make_delta
from etude.weights.forms import Array
from etude.weights.manifest import Bits, Delta, root_of
from etude.weights.pins import Pins
from etude.weights.retention import Retention
from etude.weights.shards import PARTS_S, Shard, ShardedChain
from etude.weights.signing import Keys, load_keys, name_of
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber


@dataclass
class _Merge:
    """Where the next merged delta starts, and how many versions it spans by now."""

    base: Held
    publishes: int = 0


CHUNK_ELEMENTS = 1 << 20
"""Elements of a chunk, the unit of encoding and of corruption reports: some milliseconds' work, so that cores share a
tensor, and its own overhead is nothing."""
MERGE_OVER = (8, 32)
"""Every so many publishes, one delta over all of them may be stored beside the last one's own: values that are back at
what they were vanish from it, and who is late catches up in a few fetches. Costs a copy of the weights for each."""
KEPT_SETS = 1 + len(MERGE_OVER) + 2
"""Sets of a version's arrays that may be in memory at once: the last version, where each merged delta starts, and two
that are on their way (`background`)."""
ANCHOR_EVERY = 256
"""A full copy is stored beside the delta when the last one is this many publishes old. Merged deltas serve who is late;
a full copy serves who holds nothing, lets old versions be deleted, and weighs as much as a hundred deltas."""


class PublisherConfig(Config):
    """How a version is written as deltas, how they are compressed, and how long they are kept."""

    policy: Policy = "small"
    """Whether every codec is tried for the shortest payload, or only the fastest."""
    threads: int = Field(1, ge=1)
    """Chunks of a version that are encoded at the same time."""
    merge: Literal["needed", "always"] = "needed"
    """Whether merged deltas are stored for whoever may come late, or only while a version from before their start is
    pinned or leased: somebody is late then, and will go that way. Ranks that publish together always store them.
    """
    keep: int = Field(64, ge=1)
    """The newest so many versions stay as they are, and pinned ones fetchable (`etude weights pin`). Of older ones only
    what leads to these is left: merged deltas and anchors, and single deltas where there are no others.
    """
    signing_key: Path | None = None
    """A private key (PEM, Ed25519) that every manifest is signed with; `etude weights keygen` makes one."""
    trusted_keys: tuple[Path, ...] = ()
    """Further public keys, for a chain that was begun with another one."""
    when_behind: Literal["wait", "replace"] = "wait"
    """What a step does when the last version is still being written and one more waits: wait for room, so that the
    chain has every version; or take the place of the one that waits, which is then never published.
    """


@dataclass(frozen=True)
class PublishResult:
    """What a publish did. `existing`: the version was there already, with the same root; nothing was written."""

    version: Version
    root: str
    payload_bytes: int
    raw_bytes: int
    changed_share: float
    kind: Literal["full", "delta", "existing"]
    anchor_bytes: int = 0


class Publisher:
    """Writes one store. Use it from one thread at a time. `keys` stand in for those that the config names.

    With a `shard` it is one rank of several that publish together: each is given its own tensors, and makes the same
    calls in the same order. Roots and sizes are then those of its part.

    `counters`: published_deltas, published_merged (deltas over several versions), published_anchors (full copies, the
    first version's among them), published_bytes, published_existing, deleted_versions, deleted_bytes, unswept (times
    that retention deleted nothing, for a manifest was damaged).
    """

    def __init__(
        self,
        store: Store,
        config: PublisherConfig | None = None,
        keys: Keys | None = None,
        shard: Shard | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
        parts_s: float = PARTS_S,
        merge_over: Sequence[int] = MERGE_OVER,
        anchor_every: int = ANCHOR_EVERY,
    ) -> None:
        """`parts_s` is how long the ranks wait for each other's parts of a version."""
        self.config, self._chunk_elements = config or PublisherConfig(), chunk_elements
        self._merge_over, self._anchor_every = merge_over, anchor_every
        keys = keys or load_keys(self.config.signing_key, self.config.trusted_keys)
        self.chain = Chain(store, keys) if shard is None else ShardedChain(store, shard, keys, parts_s)
        self.counters: Counter[str] = Counter()
        self._whole = Chain(store, keys)
        self._pins, self._retention = Pins(self._whole), Retention(self._whole, self.config.keep)
        self._leads = shard is None or shard.rank == 0
        self._held: Held | None = None
        self._spare: Bits | None = None
        self._attached = False
        self._since_anchor = 0
        self._merges: dict[int, _Merge] = {}
        self.encoded_bytes = 0
        """Bytes of weights of the version at work that are encoded by now; for any thread to read."""

    def resume(self, bits: Mapping[str, Array] | None = None) -> Version | None:
        """Take up the chain that the store holds; returns its newest version, None for an empty store.

        `bits`, if given, are that version's, and are checked against its root; else they are fetched. Raises
        WeightError. The first publish does this by itself.
        """
        listing = self.chain.listing()
        visible = [version for version, names in listing.items() if MANIFEST in names]
        self._held, self._since_anchor, self.chain.id = None, 0, None
        self._retention.forget()
        if visible:
            newest = visible[-1]
            root = self.chain.manifest(newest).root
            self._check_signer(newest)
            if bits is None:
                bits, _ = Subscriber(self.chain.store, keys=self.chain.keys, choose=self.chain.choose).fetch(
                    None, None, newest
                )
            elif (given := root_of(bits)) != root:
                where = f"version {newest} in {self.chain.store.url}"
                raise WeightError(f"{where} has root {root}, and the weights given have {given}: resume without them")
            self._held = Held(newest, root, copy_bits(bits))
            anchor = max([version for version, names in listing.items() if ANCHOR in names], default=visible[0])
            self._since_anchor = sum(version > anchor for version in listing)
        self._merges = {over: _Merge(self._held) for over in self._merge_over} if self._held else {}
        self._attached = True
        return self._held.version if self._held else None

    def publish(
        self, version: Version, bits: Mapping[str, Array], *, anchor: bool = False, keep: bool = False
    ) -> PublishResult:
        """Make `version` visible, whole. With `anchor`, a full copy is stored beside its delta in any case; with
        `keep`, the arrays are the publisher's from now on, and are copied only where they are not contiguous.

        A version that is there already with the same root is left as it is, so a publish may be repeated. Raises
        WeightError if it is there with another root, is older than the newest, or has other tensors; DeadlineExceeded
        if the store does not answer. After any error the same call may be made again.
        """
        check_bits(bits)
        if not self._attached:
            self.resume()
        if self._held is not None and version <= self._held.version:
            return self._confirm(version, bits)
        new = contiguous_bits(bits) if keep else copy_bits(bits)
        delta = self._encode(version, new, self._held)
        self._check_parent()
        if not self.chain.write(delta):
            self._attached, self.chain.id = False, None  # somebody else extended it: the next publish reads it afresh
            return self._confirm(version, bits)
        former, full = self._held, self._held is None
        self._held = Held(version, delta.root, new, {tensor.name: tensor.hash for tensor in delta.tensors})
        self._since_anchor = 0 if full else self._since_anchor + 1
        self.counters["published_anchors" if full else "published_deltas"] += 1
        self.counters["published_bytes"] += delta.payload_bytes
        merged_bytes = self._write_merged(self._held)
        if former is not None and all(merge.base is not former for merge in self._merges.values()):
            self._spare = former.bits
        due = not full and (anchor or self._since_anchor >= self._anchor_every)
        anchor_bytes = self._write_anchor() if due else 0
        if self._leads and (merged_bytes or anchor_bytes):
            self._sweep()
        return PublishResult(
            version=version,
            root=delta.root,
            payload_bytes=delta.payload_bytes,
            raw_bytes=delta.raw_bytes,
            changed_share=delta.changed_share,
            kind="full" if full else "delta",
            anchor_bytes=anchor_bytes,
        )

    def spare(self, given: Bits) -> Bits | None:
        """Arrays for a later version to be copied into, after `given` were published to be kept: these, if they are not
        needed; else those of an earlier version that is needed no more, if there are any.
        """
        held = self._held is not None and self._held.bits is given
        if not held and all(merge.base.bits is not given for merge in self._merges.values()):
            return given
        spare, self._spare = self._spare, None
        return spare

    def published(self, version: Version) -> PublishResult:
        """A version that is in the store, as its manifest tells it. Raises MissingObject or WeightError."""
        there = self.chain.manifest(version)
        return PublishResult(version, there.root, there.payload_bytes, there.raw_bytes, there.changed_share, "existing")

    def whole(self, version: Version) -> PublishResult:
        """The same, and of all ranks where several publish together."""
        there = self._whole.manifest(version)
        return PublishResult(version, there.root, there.payload_bytes, there.raw_bytes, there.changed_share, "existing")

    @property
    def leads(self) -> bool:
        """Whether this publisher is the one to delete: the only one, or rank 0."""
        return self._leads

    def rewind(self, version: Version) -> None:
        """Unpublish everything after `version`, newest first: for a trainer that goes on from an older checkpoint.

        Subscribers that hold a version taken away learn of it at their next fetch, by its root. Raises WeightError if
        one of these is pinned; leases do not count, for their holders look again.
        """
        if not self.chain.visible(version):
            raise WeightError(f"{self.chain.store.url} has no version {version} to rewind to")
        if pinned := [pin for pin in self._pins.live() if pin.version > version and not pin.is_lease]:
            raise WeightError(
                f"{self.chain.store.url}: version {pinned[0].version} is pinned ({pinned[0].name}) and would be taken "
                f"away: `etude weights unpin {self.chain.store.url} --version {pinned[0].version} --name "
                f"{pinned[0].name}` first, or go on in another store"
            )
        for newer in sorted((found for found in self.chain.listing() if found > version), reverse=True):
            self.chain.remove(newer)
        self._attached = False

    def rollback(self, version: Version) -> PublishResult:
        """Publish an earlier version's weights as the newest version, so that whoever follows the chain goes back to
        them. The new version is pinned as "rollback": a run that goes on from what was rolled back is told of it.

        For an operator, while no trainer publishes here. Raises WeightError if that version is not kept, or newest.
        """
        newest = self.resume()
        if newest is None or not self.chain.visible(version) or version == newest:
            kept = ", ".join(map(str, self.chain.versions()[-8:-1])) or "none"
            raise WeightError(
                f"{self.chain.store.url}: cannot go back to version {version}: of older ones it has {kept}"
            )
        bits, back = Subscriber(self.chain.store, keys=self.chain.keys).fetch(None, None, version)
        result = self.publish(Version(newest + 1), bits)
        if result.root != back.root:
            raise AssertionError(f"version {result.version} has root {result.root} and not that of version {version}")
        self._pins.set(result.version, "rollback", f"from version {newest} back to version {version}")
        return result

    def _encode(self, version: Version, bits: Bits, parent: Held | None) -> Delta:
        """What turns a version into another; its packs are in the store then."""
        self.chain.id = self.chain.id or self.chain.new_id()
        config, chunk = self.config, self._chunk_elements
        return make_delta(
            self.chain.id, version, bits, parent, chunk, config.policy, config.threads, self._progressed,
            put=partial(self.chain.put, version),
        )  # fmt: skip

    def _progressed(self, encoded_bytes: int) -> None:
        self.encoded_bytes = encoded_bytes

    def _check_parent(self) -> None:
        """A version must not be published on one that was taken away meanwhile: nobody could follow."""
        if self._held is not None and not self.chain.visible(self._held.version):
            self._attached, gone = False, self._held.version
            raise WeightError(
                f"{self.chain.store.url}: version {gone}, which this publisher goes on from, is not there any more: "
                "the chain was rewound; resume from an older checkpoint, or publish to another store"
            )

    def _check_signer(self, newest: Version) -> None:
        """A signed chain goes on signed: its readers would refuse the rest."""
        signer = self.chain.signer(newest)
        if signer is not None and self.chain.keys.signer is None:
            raise WeightError(
                f"{self.chain.store.url}: version {newest} is signed by key {name_of(signer)}, and this publisher has "
                "none: set publisher.signing_key, or publish to another store"
            )

    def _confirm(self, version: Version, bits: Mapping[str, Array]) -> PublishResult:
        """The result for a version that is visible already. Raises WeightError unless it is the same one."""
        store = self.chain.store.url
        if not self.chain.visible(version):
            newest = self._held.version if self._held else "unknown"
            raise WeightError(f"version {version} is older than the newest in {store} ({newest}) and is not kept there")
        there, root = self.published(version), root_of(bits)
        if there.root != root:
            raise WeightError(
                f"version {version} is in {store} with root {there.root}, and this one has {root}: another trainer "
                "writes there, this one went back, or the store was rolled back; use another store, or rewind this one "
                "below that version"
            )
        self.counters["published_existing"] += 1
        return there

    def _write_merged(self, newest: Held) -> int:
        """Store the deltas over several versions that end here; returns their bytes.

        A merged delta is made from the two versions' bits, never from the deltas between: 2 to 10% of the elements
        touched on the way are back at their old value. After a restart its count begins anew.
        """
        written = 0
        for over in self._merge_over:
            merge = self._merges.setdefault(over, _Merge(newest))
            if merge.base is newest:
                continue
            merge.publishes += 1
            if merge.publishes < over:
                continue
            if self._somebody_starts_before(merge.base.version):
                delta = self._encode(newest.version, newest.bits, merge.base)
                self.chain.write(delta, merged_name(merge.base.version))
                self.counters["published_merged"] += 1
                self.counters["published_bytes"] += delta.payload_bytes
                written += delta.payload_bytes
            self._merges[over] = _Merge(newest)
        return written

    def _somebody_starts_before(self, base: Version) -> bool:
        """Whether a merged delta from `base` on is of use."""
        if self.config.merge == "always" or isinstance(self.chain, ShardedChain):
            return True
        return any(pin.version <= base for pin in self._pins.live())

    def _write_anchor(self) -> int:
        """Store a full copy of the newest version; returns its bytes."""
        held = self._held
        assert held is not None
        delta = self._encode(held.version, held.bits, None)
        self.chain.write(delta, ANCHOR)
        self._since_anchor = 0
        self.counters["published_anchors"] += 1
        self.counters["published_bytes"] += delta.payload_bytes
        return delta.payload_bytes

    def _sweep(self) -> None:
        swept = self._retention.sweep()
        self.counters["deleted_versions"] += swept.versions
        self.counters["deleted_bytes"] += swept.bytes
        self.counters["unswept"] += bool(swept.damaged)

"""One version from many ranks: each uploads its own tensors, and the version exists when all of them are there.

Owns the meeting of the ranks in the store, which is the only thing they share. Each writes its packs and, beside them,
a *part*: the manifest of its own tensors, `versions/00000012/part-ATTEMPT-NAME-RANK`. Rank 0 waits for every part of
its attempt, puts them together under one root, checks that they start from the version that is there, and writes the
manifest; the others wait for it, and find in it what they wrote. A rank that is killed or late costs a deadline that
names it, and nothing becomes visible. Talks to: chain.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import MANIFEST, Chain, key_of
from etude.weights.manifest import MOST_MANIFEST_BYTES, Delta, dump, load, root_of_hashes
from etude.weights.signing import Keys
from etude.weights.store import MissingObject, Store

PARTS_S = 300.0
"""How long ranks wait for each other's parts of a version: they end a step together, and the slowest store decides."""
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_PART = b"etude-weights part\0"
"""In front of a part, so that none passes for a manifest, whoever signed it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


@dataclass(frozen=True)
class Shard:
    """Which part of every version a rank publishes."""

    rank: int
    ranks: int
    attempt: str
    """32 hex digits, the same on all ranks, and drawn anew whenever they start or go back to an older version: parts
    that a killed attempt left behind are never mixed with those of another.
    """
    names: frozenset[str]
    """The tensors and slices that are this rank's: of each one rank is the owner, also where several hold a copy."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks or not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(f"rank {self.rank} of {self.ranks}, attempt {self.attempt!r}")


class ShardedChain(Chain):
    """The chain as one rank sees it: its own tensors and their roots. Its writes are those of all ranks together.

    Every rank makes the same calls of `write` in the same order. Only rank 0 deletes; a rewind is done by rank 0 alone,
    before any rank goes on.
    """

    def __init__(self, store: Store, shard: Shard, keys: Keys | None = None, deadline_s: float = PARTS_S) -> None:
        super().__init__(store, keys, lambda names: shard.names)
        self.shard, self._deadline_s = shard, scaled(deadline_s)
        self._whole = Chain(store, keys)

    def new_id(self) -> str:
        return self.shard.attempt

    def write(self, delta: Delta, name: str = MANIFEST) -> bool:
        """Store this rank's part; true once the manifest of all ranks is visible and holds them.

        Raises DeadlineExceeded, naming the ranks whose parts are not there, or WeightError if parts do not fit.
        """
        version = Version(delta.version)
        self.store.put(self._part(version, name, self.shard.rank), self.keys.seal(_PART + dump(delta)))
        if self.shard.rank == 0:
            if not self.store.exists(key_of(version, name)):
                whole = assemble(self._gather(version, name))
                self._check_base(whole, name)
                self.store.put(key_of(version, name), self.keys.seal(dump(whole)), create=True)
            for rank in range(self.shard.ranks):
                self.store.delete(self._part(version, name, rank))
        else:
            here = f"rank 0 to make version {version} visible in {self.store.url} ({name})"
            self._wait(lambda: self.store.exists(key_of(version, name)), lambda: here)
        return self.manifest(version, name).root == delta.root

    def remove(self, version: Version) -> None:
        if self.shard.rank == 0:
            super().remove(version)

    def _gather(self, version: Version, name: str) -> list[Delta]:
        """All parts, in the order of their ranks."""
        wanted = {self._part(version, name, rank): rank for rank in range(self.shard.ranks)}
        missing: set[int] = set()

        def complete() -> bool:
            nonlocal missing
            there = self.store.list(f"versions/{version:08d}/").keys()
            missing = {rank for key, rank in wanted.items() if key not in there}
            return not missing

        def who() -> str:
            ranks = ", ".join(map(str, sorted(missing)))
            return f"rank {ranks} of {self.shard.ranks} to upload its part of version {version} to {self.store.url}"

        self._wait(complete, who)
        return [self._read(key) for key in wanted]

    def _read(self, key: str) -> Delta:
        where = f"{self.store.url}/{key}"
        data = self.keys.open(self.store.get(key, MOST_MANIFEST_BYTES), where)
        if not data.startswith(_PART):
            raise WeightError(f"{where}: not a part of a version; delete it, and publish again")
        return load(data[len(_PART) :], where)

    def _check_base(self, whole: Delta, name: str) -> None:
        """The parts together must start from a version that is there, to its last tensor."""
        if whole.parent is None:
            return
        try:
            there = self._whole.manifest(Version(whole.parent))
        except MissingObject:
            if name == MANIFEST:
                raise
            return  # retention thinned out what a merged delta starts from; its hashes still hold
        if there.root != whole.parent_root:
            raise WeightError(
                f"{self.store.url}: the ranks' parts of version {whole.version} start from root {whole.parent_root}, "
                f"and version {whole.parent} has {there.root}: a rank went on from other weights, or a tensor has no "
                "owner; start all ranks from one checkpoint, with every tensor in one rank's names"
            )

    def _part(self, version: Version, name: str, rank: int) -> str:
        return key_of(version, f"part-{self.shard.attempt}-{name}-{rank:05d}")

    def _wait(self, done: Callable[[], bool], what: Callable[[], str]) -> None:
        started, pause = time.monotonic(), _FIRST_PAUSE_S
        while not done():
            waited = time.monotonic() - started
            if waited >= self._deadline_s:
                raise DeadlineExceeded(
                    what(), waited, "nothing is visible of it; see that rank's log, and publish again"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)


def assemble(parts: Sequence[Delta]) -> Delta:
    """One delta from those of all ranks, their packs side by side. Raises WeightError if they do not fit together."""
    first = parts[0]
    for rank, part in enumerate(parts):
        if (part.chain, part.version, part.parent) != (first.chain, first.version, first.parent):
            raise WeightError(
                f"rank {rank} made version {part.version} of chain {part.chain} from {part.parent}, and rank 0 version "
                f"{first.version} of chain {first.chain} from {first.parent}: they are out of step; start all ranks "
                "from one checkpoint"
            )
    begins = itertools.accumulate((len(part.packs) for part in parts), initial=0)
    of_rank = [
        (rank, tensor.model_copy(update={"pack": begin + tensor.pack}))
        for rank, (begin, part) in enumerate(zip(begins, parts, strict=False))
        for tensor in part.tensors
    ]
    of_rank.sort(key=lambda each: each[1].name)
    for (one, tensor), (other, same) in itertools.pairwise(of_rank):
        if tensor.name == same.name:
            raise WeightError(f"{tensor.name} is in the parts of ranks {one} and {other}; it needs one owner")
    tensors = [tensor for _, tensor in of_rank]
    base = [(tensor.name, tensor.dtype, tensor.shape, tensor.parent_hash or "") for tensor in tensors]
    return Delta(
        chain=first.chain,
        version=first.version,
        parent=first.parent,
        parent_root=None if first.parent is None else root_of_hashes(base),
        root=root_of_hashes((tensor.name, tensor.dtype, tensor.shape, tensor.hash) for tensor in tensors),
        time=max(part.time for part in parts),
        packs=tuple(pack for part in parts for pack in part.packs),
        tensors=tuple(tensors),
    )

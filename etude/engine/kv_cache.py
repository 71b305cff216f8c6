"""The paged key-value cache: pages, who holds them, and which prefixes they hold.

Owns the tensors (keys and values in fp32, of latent attention too, and the expert routes of every cached position),
reference counts, the prefix index and eviction. A page is full or it is the last of exactly one sequence; full pages
are shared by reference and never written again. Prefix keys are salted by weight version: no sequence takes up another
version's pages. With exact kernels two pages of one key hold the same bits, however they were computed. Never runs the
model (`engine.torch_engine`). On a host the layout of a page is `kernels.paged_attention`'s; on a device a token is a
row [G, C] of its layer, page by page.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

from etude.engine.lookup import PromptLookup
from etude.kernels.choice import HOST, Placement
from etude.kernels.paged_attention import PAGE, value_width
from etude.models.config import ModelConfig
from etude.records import Routes

PrefixKey = tuple[int, tuple[int, ...]]
"""(key id of the page before, or minus the version for a first page; the page's token ids)"""


class OutOfPages(Exception):
    """No page is free and none can be evicted; the scheduler preempts someone."""


@dataclass(eq=False)
class CachedSequence:
    """What the cache holds of one session: `token_ids[:computed]` are in `pages`."""

    token_ids: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    prefix_id: int | None = None
    """Id of the last full page's prefix key; None once the sequence has mixed versions and can no longer be shared."""
    shared_pages: int = 0
    """How many of its pages are full, and in the prefix index under its keys."""
    kept_routes: Routes | None = None
    """Of its first positions, as they were sampled, where keys and values were or will be computed by newer weights."""
    lookup: PromptLookup | None = None
    """What it is likely to say next, where the engine speculates."""

    @property
    def known(self) -> int:
        """How many of its first tokens something is kept of."""
        return max(self.computed, 0 if self.kept_routes is None else len(self.kept_routes))


def _zeros(*shape: int) -> torch.Tensor:
    """Numpy's: the system gives a page of memory when it is first written to, torch's zeros take all at once."""
    return torch.from_numpy(np.zeros(shape, np.float32))


class PagedCache:
    """Fixed number of pages; sequences borrow them."""

    def __init__(self, config: ModelConfig, pages: int, placement: Placement = HOST) -> None:
        self.placement = placement
        layers, (groups, width) = config.layers + config.further_token, config.cached_key
        of_value, channels = config.cached_value
        if placement.kernels.on_host:
            self.keys = _zeros(layers, pages, groups, width, PAGE)
            self.values = _zeros(layers, pages, PAGE, of_value, value_width(channels))
        else:
            self.keys = torch.zeros(layers, pages * PAGE, groups, width, device=placement.device)
            self.values = torch.zeros(layers, pages * PAGE, of_value, channels, device=placement.device)
        route = np.min_scalar_type(max(config.experts - 1, 0))  # the smallest integer that holds an expert's number
        self.routes = np.zeros((pages, PAGE, len(config.moe_layers), config.experts_per_token), route)
        self.free = list(range(pages))[::-1]
        self.references = [0] * pages
        self._index: OrderedDict[PrefixKey, int] = OrderedDict()  # → page; order is least recently used first
        self._key_of_page: dict[int, PrefixKey] = {}
        self._ids: dict[PrefixKey, int] = {}
        self._next_id = 1

    @property
    def positions(self) -> int:
        """How many tokens there is room for."""
        return len(self.references) * PAGE

    def gauges(self) -> dict[str, float]:
        """How large it is, and how much of it sequences hold."""
        held = sum(1 for holders in self.references if holders)
        return {"pages": len(self.references), "pages_held": held, "cache_tokens": self.positions}

    # --- pages --------------------------------------------------------------------------------------------------------

    def allocate(self) -> int:
        """A page of one's own; evicts the least recently used prefix page nobody holds. Raises OutOfPages."""
        if not self.free:
            self._evict()
        page = self.free.pop()
        self.references[page] = 1
        return page

    def _evict(self) -> None:
        for key, page in self._index.items():
            if self.references[page] == 0:
                self._forget(key, page)
                self.free.append(page)
                return
        raise OutOfPages

    def _forget(self, key: PrefixKey, page: int) -> None:
        del self._index[key], self._key_of_page[page]
        self._ids.pop(key, None)

    def release(self, sequence: CachedSequence) -> None:
        """Give back a sequence's pages; those in the prefix index stay until evicted."""
        for page in sequence.pages:
            self.references[page] -= 1
            if self.references[page] == 0 and page not in self._key_of_page:
                self.free.append(page)
        sequence.pages, sequence.computed, sequence.shared_pages, sequence.prefix_id = [], 0, 0, None

    def forget(self, sequence: CachedSequence) -> None:
        """Give back a sequence's pages, but keep the routes that its tokens were sampled with."""
        sequence.kept_routes = self.routes_of(sequence, sequence.known)
        self.release(sequence)

    def reserve(self, sequence: CachedSequence, length: int) -> None:
        """Make room for the first `length` tokens. Raises OutOfPages with the sequence as it was or larger, never
        torn.
        """
        while len(sequence.pages) * PAGE < length:
            sequence.pages.append(self.allocate())

    # --- prefixes -----------------------------------------------------------------------------------------------------

    def begin(self, sequence: CachedSequence, version: int) -> None:
        """The pages of a sequence that holds none will be this version's, its own and those it takes up."""
        sequence.prefix_id = -1 - version

    def next_page(self, sequence: CachedSequence) -> PrefixKey | None:
        """Key of the first page that it lacks, whole or in part, where that may be another's as well: its tokens are
        known, and so is one after them. A sequence computes its last token itself.
        """
        prefix, end = sequence.prefix_id, (sequence.shared_pages + 1) * PAGE
        if prefix is None or end >= len(sequence.token_ids):
            return None
        return prefix, tuple(sequence.token_ids[end - PAGE : end])

    def adopt(self, sequence: CachedSequence) -> int:
        """Take up the pages that it lacks, as far as they are there; returns how many tokens it need not compute."""
        before = sequence.computed
        while (key := self.next_page(sequence)) in self._index and self._take_up(sequence, key):
            self._step_over(sequence, key)
            sequence.computed = sequence.shared_pages * PAGE
        return sequence.computed - before

    def share_full_pages(self, sequence: CachedSequence) -> None:
        """Put pages that have become full into the prefix index; where an equal one is there, hold that instead."""
        while (prefix := sequence.prefix_id) is not None:
            number, end = sequence.shared_pages, (sequence.shared_pages + 1) * PAGE
            if end > sequence.computed:
                return
            key = (prefix, tuple(sequence.token_ids[end - PAGE : end]))
            if key in self._index:
                self._take_up(sequence, key)
            else:
                self._index[key], self._key_of_page[sequence.pages[number]] = sequence.pages[number], key
                self._ids[key] = self._next_id
                self._next_id += 1
            self._step_over(sequence, key)

    def _step_over(self, sequence: CachedSequence, key: PrefixKey) -> None:
        """Its next page is the one after this."""
        sequence.prefix_id = self._ids[key]
        sequence.shared_pages += 1

    def _take_up(self, sequence: CachedSequence, key: PrefixKey) -> bool:
        """Hold the index's page instead of one's own, which is freed. Not where its tokens took other routes, as
        kernels that are not exact may lead them: what was sampled is trained on the routes that it had.
        """
        page, number = self._index[key], sequence.shared_pages
        if number < len(sequence.pages):
            own, filled = sequence.pages[number], max(0, sequence.computed - number * PAGE)
            if not np.array_equal(self.routes[own, :filled], self.routes[page, :filled]):
                return False
            self.references[own] = 0
            self.free.append(own)
        sequence.pages[number : number + 1] = [page]
        self._index.move_to_end(key)
        self.references[page] += 1
        return True

    # --- positions ----------------------------------------------------------------------------------------------------

    def routes_of(self, sequence: CachedSequence, length: int) -> Routes:
        """Routes [length, L, K] of the first positions."""
        rows = self.routes[sequence.pages]
        routes = rows.reshape(len(rows) * PAGE, *self.routes.shape[2:])[:length]
        if sequence.kept_routes is None:
            return routes.copy()
        kept = sequence.kept_routes[:length]
        return np.concatenate([kept, routes[len(kept) :]])

    def check(self, sequences: list[CachedSequence]) -> None:
        """Assert the books balance: every page is free, held as often as counted, or kept for its prefix alone."""
        held = [0] * len(self.references)
        for sequence in sequences:
            for page in sequence.pages:
                held[page] += 1
        assert held == self.references, "reference counts differ from what sequences hold"
        resting = {page for page in self._key_of_page if held[page] == 0}
        assert len(self.free) == len(set(self.free)), "a page is free twice"
        assert set(self.free) | resting | {p for p, n in enumerate(held) if n} == set(range(len(held))), "a page leaked"

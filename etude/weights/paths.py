"""Paths through a chain: which deltas lead from a version, or from nothing, to another.

Owns the search, for who reads (`subscriber`) and for who deletes (`retention`), so that what one needs the other keeps.
A version may be reached by its own delta, by merged ones over several versions, or by a full copy; any of them may be
missing, because retention thinned it out, or useless, because it is damaged. Reads nothing itself: the parent of a
delta that its name does not tell is asked of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from etude.records import Version
from etude.weights.chain import ANCHOR, MANIFEST, merged_parent

Listing = Mapping[Version, Mapping[str, int]]


class Step(NamedTuple):
    """One stored delta or full copy: the manifest of this name makes this version."""

    version: Version
    name: str


ParentOf = Callable[[Step], Version | None]
"""The version that a step starts from; None for a full copy."""


def path_to(
    listing: Listing, target: Version, start: Version, parent_of: ParentOf, without: frozenset[Step] = frozenset()
) -> list[Step] | None:
    """Deltas that turn `start` into `target`, in order, none of them in `without`; None if there is no such path.

    The longest stride that does not pass `start` is tried first: a merged delta is never longer than those it spans.
    """
    return _search(listing, target, start, parent_of, without)[0]


def path_from_nothing(
    listing: Listing, target: Version, parent_of: ParentOf, without: frozenset[Step] = frozenset()
) -> list[Step] | None:
    """The newest full copy from which `target` can be reached, and the deltas from there; None if there is none."""
    for full in _full_copies(listing, target, parent_of, without):
        if (rest := path_to(listing, target, full.version, parent_of, without)) is not None:
            return [full, *rest]
    return None


def broken_below(listing: Listing, target: Version, start: Version, parent_of: ParentOf) -> Version:
    """The oldest version that deltas lead back to from `target`, when none lead to `start`."""
    return min(_search(listing, target, start, parent_of, frozenset())[1], default=target)


def _full_copies(listing: Listing, target: Version, parent_of: ParentOf, without: frozenset[Step]) -> Iterator[Step]:
    """Full copies of versions up to `target`, newest first: anchors, and the chain's first version."""
    for version in sorted((found for found in listing if found <= target), reverse=True):
        if ANCHOR in listing[version] and (anchor := Step(version, ANCHOR)) not in without:
            yield anchor
    visible = [version for version, names in listing.items() if MANIFEST in names]
    first = Step(min(visible, default=target), MANIFEST)
    if visible and first.version <= target and first not in without and parent_of(first) is None:
        yield first


def _search(
    listing: Listing, target: Version, start: Version, parent_of: ParentOf, without: frozenset[Step]
) -> tuple[list[Step] | None, set[Version]]:
    """The way, and the versions it led back to in vain."""
    dead: set[Version] = set()
    back: list[tuple[Step, Iterator[Step]]] = []
    version, steps = target, _strides(listing, target, start, without)
    while version != start:
        step = next(steps, None)
        if step is None:
            dead.add(version)
            if not back:
                return None, dead
            (last, steps) = back.pop()
            version = last.version
            continue
        parent = parent_of(step)
        if parent is None or not start <= parent < version or parent in dead:
            continue  # a name may lie: one that leads onwards would lead round in circles
        back.append((step, steps))
        version, steps = parent, _strides(listing, parent, start, without)
    return [step for step, _ in reversed(back)], dead


def _strides(listing: Listing, version: Version, start: Version, without: frozenset[Step]) -> Iterator[Step]:
    """The deltas that make a version, the longest first."""
    names = listing.get(version, {})
    merged = sorted((parent, name) for name in names if (parent := merged_parent(name)) is not None and parent >= start)
    for name in [*(name for _, name in merged), *([MANIFEST] if MANIFEST in names else [])]:
        if (step := Step(version, name)) not in without:
            yield step

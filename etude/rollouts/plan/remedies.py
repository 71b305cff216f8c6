"""What makes a dry run fit that does not: one key, or more ranks.

Owns the changes that are thought of and their order, the cheapest first. What a change would save is only a guess: it
is rehearsed before it is said, so that what is said does make it fit. Where no single change does, that is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from etude.config import overridden
from etude.errors import ConfigError
from etude.rollouts.plan.amounts import size_of
from etude.rollouts.plan.machines import HERE

if TYPE_CHECKING:
    from etude.rollouts.config import RunConfig
    from etude.rollouts.plan.dry_run import DryRun

STATE = ("parameters", "adapted", "masters", "moments", "gradients", "reference", "newest version", "older versions")
"""What each further rank of `fsdp` has less of. The rest is a piece's, or the optimizer's own."""
BY_TOKENS = ("activations", "logits", "routes")
"""What a shorter piece has less of."""
VERSIONS = ("newest version", "older versions")
MOST_TIMES = 1024
"""No cluster has so many times the ranks: there it is the piece that is too large."""
HALVINGS = 3
"""Of a piece: shorter ones would not hold a session."""
_OF_HOST = ("trainer.optimizer.", "trainer.ranks=")
"""What may change how much is in the host's memory."""
LEAST_POSITIONS, STEP = 4096, 1024
"""Of an engine's cache that is made smaller, and in what steps."""


class Change(NamedTuple):
    """An override of the recipe, and the bytes that a rank is guessed to need with it."""

    override: str
    needed: int


def remedy_of(run: DryRun, replay: Callable[[RunConfig], DryRun]) -> str:
    """What to do, as the end of a sentence. `replay` plays another recipe on the same machine."""
    of_host = run.needed <= run.machine.usable
    for change in (*_changes(run), *_more_ranks(run)):
        if change.needed > run.machine.usable or (of_host and not change.override.startswith(_OF_HOST)):
            continue
        try:
            other = replay(overridden(run.recipe, [change.override]))
        except ConfigError:
            continue  # the model, or another key, does not allow it
        if other.fits:
            key, _, value = change.override.partition("=")
            ranks = f"use {other.config.processes} ranks: " if key == "trainer.ranks" else "set "
            return f"{ranks}{key} = {value}"
    return _none(run)


def _needed(run: DryRun, pieces: Mapping[str, float], optimizer: Mapping[str, float] | None = None) -> int:
    """Where these shares of each kind are left, of a piece and of the optimizer's step (None: the same)."""
    peaks = (run.rehearsal.in_pieces, pieces), (run.rehearsal.in_optimizer, pieces if optimizer is None else optimizer)
    peak = max(sum(size * left.get(kind, 1) for kind, size in kinds.items()) for kinds, left in peaks)
    return int(peak) + run.needed - sum(run.rehearsal.fullest.values())


def _changes(run: DryRun) -> Iterator[Change]:
    """Of one key, on the ranks that there are."""
    config, here = run.config, run.machine.name == HERE
    if config.parity_tokens:
        yield Change("trainer.parity_tokens=0", _needed(run, dict.fromkeys(VERSIONS, 0)))
    if config.optimizer.format == "fp32":
        yield Change('trainer.optimizer.format="bf16"', _needed(run, {"moments": 0.5}))
    for times in (2**each for each in range(1, HALVINGS + 1)):
        left = _needed(run, dict.fromkeys(BY_TOKENS, 1 / times), {})
        yield Change(f"trainer.piece_tokens={config.piece_tokens // times}", left)
    if config.optimizer.keep == "device" and not here:
        yield Change('trainer.optimizer.keep="host"', _needed(run, {"moments": 0}))
    if config.optimizer.keep == "host" and run.host_usable is not None:
        yield Change('trainer.optimizer.keep="device"', run.needed)
    yield from _smaller_cache(run)


def _smaller_cache(run: DryRun) -> Iterator[Change]:
    engines, missing = run.engines, run.needed - run.machine.usable
    if not engines.count or missing <= 0:
        return
    spared = math.ceil(missing / (engines.count * engines.position))
    positions = (engines.positions - spared) // STEP * STEP
    if positions >= LEAST_POSITIONS:
        yield Change(f"engine.cache_tokens={positions}", run.machine.usable)


def _more_ranks(run: DryRun) -> Iterator[Change]:
    """On more computers of this kind; there is one of this computer."""
    if run.machine.name == HERE:
        return
    axes = dict(run.config.mesh or {"fsdp": run.config.processes})
    guesses = range(2, MOST_TIMES)
    first = next((times for times in guesses if _with_times(run, times) <= run.machine.usable), None)
    for times in () if first is None else dict.fromkeys((first, first + 1, 2 * first)):
        yield Change(_ranks(axes | {"fsdp": axes.get("fsdp", 1) * times}), run.machine.usable)
    halved = _needed(run, dict.fromkeys((*STATE, *BY_TOKENS), 0.5), {})
    yield Change(_ranks(axes | {"cp": 2 * axes.get("cp", 1)}), halved)


def _with_times(run: DryRun, times: int) -> int:
    kinds = run.rehearsal.in_optimizer
    return _needed(run, dict.fromkeys(STATE, 1 / times), dict.fromkeys(kinds, 1 / times))


def _ranks(axes: Mapping[str, int]) -> str:
    return f"trainer.ranks={{{', '.join(f'{axis} = {size}' for axis, size in axes.items())}}}"


def _none(run: DryRun) -> str:
    played, here = run.rehearsal, run.machine.name == HERE
    state = sum(played.in_pieces.get(kind, 0) for kind in STATE)
    parts = [
        f"{size_of(state)} of weights and their state",
        f"{size_of(sum(played.in_pieces.values()) - state)} a piece",
    ]
    if run.engines.bytes:
        parts.append(f"{size_of(run.engines.bytes)} the engines")
    if here:
        parts.append(f"{size_of(sum(played.on_host.values()))} checkpoints and published versions")
    elsewhere = "a larger computer, or see with --on what accelerators would do" if here else "a larger accelerator"
    return f"no single key makes it fit ({', '.join(parts)}): change several, or take {elsewhere}"

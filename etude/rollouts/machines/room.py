"""What the processes of a run ask of Ray, beside what the machines have. Needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etude.errors import ConfigError
from etude.rollouts.machines.config import Part

if TYPE_CHECKING:
    from etude.rollouts.config import RunConfig


def asked_of(config: RunConfig, part: Part) -> dict[str, float]:
    """What one process of a part asks for; that of the trainer for all of its ranks."""
    assert config.machines is not None
    times = config.trainer.processes if part == "trainer" else 1
    return {name: amount * times for name, amount in config.machines.places.get(part, {}).items()}


def fits(asked: Mapping[str, float], machine: Mapping[str, float]) -> bool:
    """Whether a machine that has all this has room for one that asks for that."""
    return all(machine.get(name, 0) >= amount for name, amount in asked.items())


def words_of(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())


def require_room(config: RunConfig, machines: Sequence[Mapping[str, float]], more: str) -> None:
    """Ray would wait forever for room that no machine has. `more` says how a machine is given more."""
    assert config.machines is not None
    for part in config.machines.places:
        asked = asked_of(config, part)
        if not any(fits(asked, each) for each in machines):
            there = "; ".join(sorted({words_of({name: each.get(name, 0) for name in asked}) for each in machines}))
            raise ConfigError(
                f"machines.places.{part}: no machine has {words_of(asked)}; of that they have: {there}. Ask for less, "
                f"or give a machine more ({more})"
            )

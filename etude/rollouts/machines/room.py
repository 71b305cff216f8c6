"""What the processes of a run ask of Ray, beside what the machines have. Needs no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etude.errors import ConfigError
from etude.rollouts.machines.config import Part

if TYPE_CHECKING:
    from etude.rollouts.config import RunConfig


def asked_of(config: RunConfig, part: Part) -> Mapping[str, float]:
    """What one process of a part asks for; of the trainer, each rank."""
    assert config.machines is not None
    return config.machines.places.get(part, {})


def times(asked: Mapping[str, float], machine: Mapping[str, float]) -> int:
    """How many that ask for this a machine has room for, which has all that."""
    return min((int(machine.get(name, 0) / amount + 1e-6) for name, amount in asked.items()), default=1)


def words_of(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number_of(amount)}" for name, amount in amounts.items())


def number_of(amount: float) -> str:
    """All of its digits, and none behind the point where it is whole."""
    return str(int(amount)) if amount == int(amount) else repr(amount)


def require_room(config: RunConfig, machines: Sequence[Mapping[str, float]], more: str) -> None:
    """Ray would wait forever for room that no machine has. `more` says how a machine is given more."""
    assert config.machines is not None
    for part, asked in config.machines.places.items():
        wanted = config.trainer.processes if part == "trainer" else 1
        room = sum(times(asked, each) for each in machines)
        if room < wanted:
            there = "; ".join(sorted({words_of({name: each.get(name, 0) for name in asked}) for each in machines}))
            lack = (
                f"only {room} of {wanted} ranks find {words_of(asked)}" if room else f"no machine has {words_of(asked)}"
            )
            raise ConfigError(
                f"machines.places.{part}: {lack}; of that they have: {there}. Ask for less, or give a machine more "
                f"({more})"
            )

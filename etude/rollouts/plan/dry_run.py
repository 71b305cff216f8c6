"""What a recipe's trainer would hold, send and take on machines that need not be there: `etude train --dry-run`.

Owns `dry_run`, which has a step rehearsed without values (`trainer.mesh.rehearsal`) and lays it beside a machine's
figures; and its JSON. What does not fit is one sentence, with what `remedies` has found to change. The trainer's rate
is `rates.TrainerRate`, as in `etude plan`. No weights are needed: the model's directory may hold a config.json alone.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.engine.config import EngineConfig
from etude.models.config import ModelConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.amounts import size_of
from etude.rollouts.plan.machines import HERE, Machine
from etude.rollouts.plan.rates import TrainerRate
from etude.rollouts.plan.remedies import remedy_of
from etude.trainer.config import TrainerConfig
from etude.trainer.mesh.device import caveat

if TYPE_CHECKING:  # torch: functions that need it import it
    from etude.trainer.mesh.counting import Traffic, Work
    from etude.trainer.mesh.rehearsal import Rehearsal

ENGINE_BYTES = 10
"""Of a parameter in an engine of our own: as it is multiplied, as it came, and a version that is on its way."""
TO_HOST = 20e9
"""Bytes a second between a device and its host, one way: what PCIe 4 carries by sixteen lanes, less its losses."""
_PLAYED = "torch"
"""The kernels of a rehearsal."""


@dataclass(frozen=True)
class Engines:
    """Our own engines beside a rank, where they share its machine."""

    count: float = 0
    """For each rank."""
    weights: int = 0
    """Bytes of one, its cache left out."""
    positions: int = 0
    """Of its cache."""
    position: int = 0
    """Bytes of one of them."""

    @property
    def bytes(self) -> int:
        return int(self.count * (self.weights + self.positions * self.position))


@dataclass(frozen=True)
class DryRun:
    """A rehearsal on a machine."""

    recipe: RunConfig
    model: ModelConfig
    machine: Machine
    rehearsal: Rehearsal
    engines: Engines
    remedy: str = ""
    """What to change where it does not fit."""

    @property
    def config(self) -> TrainerConfig:
        return self.recipe.trainer

    @property
    def needed(self) -> int:
        """Bytes of the first rank when it has most, engines beside it included; of this computer what it keeps on the
        host, too.
        """
        on_host = sum(self.rehearsal.on_host.values()) if self.machine.name == HERE else 0
        return sum(self.rehearsal.fullest.values()) + self.engines.bytes + on_host

    @property
    def on_computer(self) -> int:
        """Bytes in the host's memory of the computer that has most there, of all its ranks."""
        return self.rehearsal.on_computers(self.machine.together)

    @property
    def host_usable(self) -> int | None:
        """Of the host's memory; None where that is not known, or is the memory of which `needed` is judged."""
        return self.machine.host_usable

    @property
    def fits(self) -> bool:
        return self.needed <= self.machine.usable and (self.host_usable is None or self.on_computer <= self.host_usable)

    @property
    def piece_s(self) -> float:
        return self.machine.seconds(self.rehearsal.piece)

    @property
    def rate(self) -> TrainerRate:
        """In the terms of `etude plan`: what a step takes beside its tokens, and what a token takes."""
        most = max(self.rehearsal.version_sent, self.rehearsal.version_received)
        step_s = self.machine.seconds(self.rehearsal.optimizer) + self.machine.seconds(self._publishing(most))
        if self.machine.name != HERE:
            step_s += self.rehearsal.over_the_bus / TO_HOST
        return TrainerRate(step_s, self.piece_s / (self.rehearsal.tokens * self.rehearsal.pieces_at_once))

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks, while they work on pieces."""
        return 1 / self.rate.token_s

    def _publishing(self, count: int) -> Work:
        from etude.trainer.mesh.counting import Link, Traffic, Work

        everyone = tuple(range(self.config.processes))
        return Work(0, 0, 0, {Link("a version", everyone): Traffic(count, 1)} if count else {})

    def links(self) -> dict[str, dict[str, Traffic]]:
        """What the first rank sends: of a piece, and beside its pieces of a step; by kind, and whether it stays inside
        a computer."""
        from etude.trainer.mesh.counting import Traffic

        found: dict[str, dict[str, Traffic]] = {}
        version = self._publishing(self.rehearsal.version_sent)
        whole = {"a piece": self.rehearsal.piece, "a step": self.rehearsal.optimizer, "a version": version}
        for when, work in whole.items():
            sums: Counter[tuple[str, int]] = Counter()
            for link, each in work.links.items():
                where = "inside a computer" if self.machine.is_inside(link) else "between computers"
                sums[f"{link.kind}, {where}", 0] += each.bytes
                sums[f"{link.kind}, {where}", 1] += each.calls
            named = sorted({kind for kind, _ in sums})
            found[when] = {kind: Traffic(sums[kind, 0], sums[kind, 1]) for kind in named if sums[kind, 0]}
        return found

    @property
    def fault(self) -> str | None:
        """What does not fit, and what to change; None where all does."""
        if self.fits:
            return None
        if self.needed <= self.machine.usable:
            return (
                f"does not fit: the ranks of a computer keep {size_of(self.on_computer)} in its host's memory, which "
                f"has {size_of(self.host_usable or 0)} to give; {self.remedy}"
            )
        most = sorted(self.rehearsal.fullest.items(), key=lambda each: -each[1])[:3]
        largest = ", ".join(f"{size_of(size)} {kind}" for kind, size in most)
        beside = f", beside {size_of(self.engines.bytes)} of engines" if self.engines.bytes else ""
        return (
            f"does not fit: a rank needs {size_of(self.needed - self.engines.bytes)} ({largest}){beside}, and "
            f"{self.machine.name} has {size_of(self.machine.usable)} to give; {self.remedy}"
        )

    @property
    def caveats(self) -> list[str]:
        """Where a run of today, as it would be started from here, is not what was played."""
        told = os.environ.get("ETUDE_KERNELS", _PLAYED if self.config.mesh else "exact")
        found = [] if self.machine.name == HERE else [caveat(self.config, "this is what GPUs would do")]
        if told != _PLAYED and self.config.mesh is not None:
            found.append(f"with ETUDE_KERNELS={told}, as it is set here, a run with a mesh is refused")
        elif told != _PLAYED:
            where = ", on CPUs" if told == "exact" else ""
            found.append(
                f"this is with torch's kernels, by ETUDE_KERNELS=torch: here a run takes those of {told}{where}"
            )
        if self.machine.name == HERE and (absent := _absent(self.recipe)):
            found.append(f"not there yet, and a run needs it: {', '.join(map(str, absent))}")
        return [each for each in found if each]

    def as_json(self) -> dict[str, Any]:
        from etude.models.size import active_parameters, parameters_of

        played = self.rehearsal
        return {
            "machine": self.machine.name, "ranks": self.config.processes, "parameters": parameters_of(self.model),
            "active_parameters": active_parameters(self.model), "piece_tokens": played.tokens,
            "pieces_at_once": played.pieces_at_once,
            "bytes": {
                "held": dict(played.held), "in_pieces": dict(played.in_pieces),
                "most": dict(played.most), "in_optimizer": dict(played.in_optimizer),
                "on_host": dict(played.on_host), "on_computer": self.on_computer, "host_usable": self.host_usable,
                "engines": self.engines.bytes, "needed": self.needed, "usable": self.machine.usable,
            },
            "links": {
                when: {kind: each._asdict() for kind, each in kinds.items()} for when, kinds in self.links().items()
            },
            "flops_per_piece": played.piece.flops, "fp32_flops_per_piece": played.piece.fp32_flops,
            "version_bytes": played.version_bytes, "piece_s": self.piece_s,
            "trainer": asdict(self.rate), "tokens_per_s": self.tokens_per_s, "fits": self.fits, "fault": self.fault,
            "caveats": self.caveats,
        }  # fmt: skip


def dry_run(config: RunConfig, machine: Machine) -> DryRun:
    """Raises ConfigError where the model cannot be cut as the recipe says."""
    found = _rehearsed(config, machine)
    if found.fits:
        return found
    return replace(found, remedy=remedy_of(found, lambda other: _rehearsed(other, machine)))


def _absent(config: RunConfig) -> list[Path]:
    """Of what a recipe names beside its model, which a dry run does not read."""
    judge = config.rewards.judge
    key = None if judge is None else judge.endpoint.key_file
    return [path for path in (*config.rollouts.tasks, *([] if key is None else [key])) if not path.exists()]


def _rehearsed(config: RunConfig, machine: Machine) -> DryRun:
    from etude.models.checkpoint import shape_of
    from etude.models.shipped import model_at
    from etude.trainer.mesh.rehearsal import rehearse

    model = shape_of(model_at(config.model.path))
    return DryRun(config, model, machine, rehearse(config.trainer, model), _engines(config, model, machine))


def _engines(config: RunConfig, model: ModelConfig, machine: Machine) -> Engines:
    """Of those that share a rank's machine. Foreign ones have machines of their own; ours are processes of this one."""
    from etude.engine.cache_size import affordable, position_bytes
    from etude.models.size import parameters_of

    if not isinstance(config.engine, EngineConfig):
        return Engines()
    count = 1 if config.fleet.engines is None else config.fleet.engines
    positions = config.engine.cache_tokens or affordable(model, machine.memory)
    share = config.trainer.processes if machine.name == HERE else 1
    return Engines(count / share, ENGINE_BYTES * parameters_of(model), positions, position_bytes(model))

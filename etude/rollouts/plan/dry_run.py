"""What a recipe's trainer would hold, send and take on machines that need not be there: `etude train --dry-run`.

Owns `dry_run`, which has a step rehearsed without values (`trainer.mesh.rehearsal`) and lays it beside a machine's
figures; what it says of it, in words and as JSON; and the sentence on what does not fit, which ends with what to
change. The trainer's rate is `rates.TrainerRate`, as in `etude plan`. No weights are needed: the model's directory may
hold a config.json alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from etude.engine.config import EngineConfig
from etude.models.config import ModelConfig
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.machines import GIB, HERE, Machine
from etude.rollouts.plan.rates import TrainerRate
from etude.trainer.config import TrainerConfig

if TYPE_CHECKING:  # torch: functions that need it import it
    from etude.trainer.mesh.counting import Traffic, Work
    from etude.trainer.mesh.rehearsal import Rehearsal

ENGINE_BYTES = 10
"""Of a parameter in an engine of our own: as it is multiplied, as it came, and a version that is on its way."""
STATE = ("parameters", "adapted", "masters", "moments", "gradients", "reference", "newest version", "older versions")
"""What each further rank of `fsdp` has less of. The rest is a piece's."""

TO_HOST = 20e9
"""Bytes a second between a device and its host, one way: what PCIe 4 carries by sixteen lanes, less its losses."""
MOST_TIMES = 1024
"""No cluster has so many times the ranks: there it is the piece that is too large."""


@dataclass(frozen=True)
class DryRun:
    """A rehearsal on a machine."""

    config: TrainerConfig
    model: ModelConfig
    machine: Machine
    rehearsal: Rehearsal
    engine_bytes: int
    """Of our own engines beside a rank, where they share its machine."""

    @property
    def needed(self) -> int:
        """Bytes of the first rank when it has most, engines beside it included; of this computer what it keeps on the
        host, too.
        """
        on_host = sum(self.rehearsal.on_host.values()) if self.machine.name == HERE else 0
        return sum(self.rehearsal.fullest.values()) + self.engine_bytes + on_host

    @property
    def fits(self) -> bool:
        return self.needed <= self.machine.usable

    @property
    def piece_s(self) -> float:
        return self.machine.seconds(self.rehearsal.piece)

    @property
    def rate(self) -> TrainerRate:
        """In the terms of `etude plan`: what a step takes beside its tokens, and what a token takes."""
        step_s = self.machine.seconds(self.rehearsal.optimizer) + self.machine.seconds(self._publishing)
        if self.machine.name != HERE:
            step_s += self.rehearsal.over_the_bus / TO_HOST
        return TrainerRate(step_s, self.piece_s / (self.rehearsal.tokens * self.rehearsal.pieces_at_once))

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks, while they work on pieces."""
        return 1 / self.rate.token_s

    @property
    def _publishing(self) -> Work:
        from etude.trainer.mesh.counting import Link, Traffic, Work

        everyone = tuple(range(self.config.processes))
        sent = self.rehearsal.version_share if self.config.mesh is not None else 0
        return Work(0, 0, 0, {Link("a version", everyone): Traffic(sent, 1)} if sent else {})

    def links(self) -> dict[str, dict[str, Traffic]]:
        """What the first rank sends: of a piece, and beside its pieces of a step; by kind, and whether it stays within
        a computer."""
        from etude.trainer.mesh.counting import Traffic

        found: dict[str, dict[str, Traffic]] = {}
        whole = {"a piece": self.rehearsal.piece, "a step": self.rehearsal.optimizer, "a version": self._publishing}
        for when, work in whole.items():
            sums: Counter[tuple[str, int]] = Counter()
            for link, each in work.links.items():
                where = "inside" if self.machine.is_inside(link) else "between computers"
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
        most = sorted(self.rehearsal.fullest.items(), key=lambda each: -each[1])[:3]
        largest = ", ".join(f"{_size(size)} {kind}" for kind, size in most)
        beside = f", beside {_size(self.engine_bytes)} of engines" if self.engine_bytes else ""
        return (
            f"does not fit: a rank needs {_size(self.needed - self.engine_bytes)} ({largest}){beside}, and "
            f"{self.machine.name} has {_size(self.machine.usable)} to give; {self._remedy()}"
        )

    def _remedy(self) -> str:
        """The least change that makes it fit, by what each would save."""
        kinds, missing = self.rehearsal.fullest, self.needed - self.machine.usable
        state = sum(kinds.get(kind, 0) for kind in STATE)
        of_piece = sum(kinds.values()) - state
        kept = sum(kinds.get(kind, 0) for kind in ("newest version", "older versions"))
        rounded = self.config.optimizer.format == "fp32"
        ways = [
            (kept, "trainer.parity_tokens = 0"),
            (kinds.get("moments", 0) // 2 if rounded else 0, 'trainer.optimizer.format = "bf16"'),
            (of_piece // 2, f"trainer.piece_tokens = {self.config.piece_tokens // 2}"),
            (0 if self.machine.name == HERE else kinds.get("moments", 0), 'trainer.optimizer.keep = "host"'),
        ]
        for saved, way in ways:
            if saved >= missing:
                return f"set {way}"
        return self._more_ranks(state, of_piece)

    def _more_ranks(self, state: int, of_piece: int) -> str:
        room = self.machine.usable - of_piece - self.engine_bytes
        if room * MOST_TIMES < state:
            return (
                f"a piece alone takes {_size(of_piece)}: lower trainer.piece_tokens (it is "
                f"{self.config.piece_tokens}), or give cp more ranks"
            )
        times = math.ceil(state / room)
        axes = dict(self.config.mesh or {})
        axes["fsdp"] = axes.get("fsdp", 1) * times
        table = ", ".join(f"{axis} = {size}" for axis, size in axes.items())
        return f"use {math.prod(axes.values())} ranks: trainer.ranks = {{{table}}}"

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
                "on_host": dict(played.on_host), "engines": self.engine_bytes,
                "needed": self.needed, "usable": self.machine.usable,
            },
            "links": {
                when: {kind: each._asdict() for kind, each in kinds.items()} for when, kinds in self.links().items()
            },
            "flops_per_piece": played.piece.flops, "fp32_flops_per_piece": played.piece.fp32_flops,
            "version_bytes": played.version_bytes, "piece_s": self.piece_s,
            "trainer": asdict(self.rate), "tokens_per_s": self.tokens_per_s, "fits": self.fits, "fault": self.fault,
        }  # fmt: skip


def dry_run(config: RunConfig, machine: Machine) -> DryRun:
    """Raises ConfigError where the model cannot be cut as the recipe says."""
    from etude.models.checkpoint import shape_of
    from etude.trainer.mesh.rehearsal import rehearse

    model = shape_of(config.model.path)
    played = rehearse(config.trainer, model)
    return DryRun(config.trainer, model, machine, played, _engines(config, model, machine))


def _engines(config: RunConfig, model: ModelConfig, machine: Machine) -> int:
    """Of those that share a rank's machine. Foreign ones have machines of their own; ours are processes of this one."""
    from etude.engine.cache_size import affordable, position_bytes
    from etude.models.size import parameters_of

    if not isinstance(config.engine, EngineConfig):
        return 0
    count = 1 if config.fleet.engines is None else config.fleet.engines
    positions = config.engine.cache_tokens or affordable(model, machine.memory)
    each = ENGINE_BYTES * parameters_of(model) + positions * position_bytes(model)
    return count * each // (config.trainer.processes if machine.name == HERE else 1)


# --- in words ---------------------------------------------------------------------------------------------------------


def lines_of(run: DryRun) -> Iterator[str]:
    """What is said of a dry run, line by line."""
    from etude.models.size import active_parameters, parameters_of

    played, rate = run.rehearsal, run.rate
    axes = run.config.mesh
    mesh = ", ".join(f"{axis} {size}" for axis, size in axes.items()) if axes else "each with all weights"
    yield (
        f"{parameters_of(run.model) / 1e9:,.2f} billion parameters, {active_parameters(run.model) / 1e9:,.2f} active; "
        f"{run.config.processes} ranks ({mesh}) on {run.machine.name}, no weights read"
    )
    yield f"a rank works on pieces of {played.tokens:,} tokens, {played.pieces_at_once} at once by all ranks"
    yield ""
    moments = played.held, played.in_pieces, played.in_optimizer
    yield "bytes of the first rank  between steps    in a piece  in the optimizer    most in a piece, by itself"
    for kind in dict.fromkeys((*played.held, *played.most, *played.in_optimizer)):
        yield _row(kind, *(each.get(kind, 0) for each in (*moments, played.most)))
    beside = run.needed - sum(played.fullest.values())
    if run.engine_bytes:
        yield _row("engines beside it", *[run.engine_bytes] * 3, 0)
    for kind, size in played.on_host.items() if run.machine.name == HERE else ():
        yield _row(kind, size, size, size, 0)
    yield _row("in all", *(sum(each.values()) + beside for each in moments), 0)
    if run.machine.name != HERE:
        there = ", ".join(f"{kind} {_size(size)}" for kind, size in played.on_host.items())
        yield f"  in the host's memory, of each rank: {there}"
    yield ""
    yield "bytes that it sends"
    for when, sent in run.links().items():
        for kind, each in sent.items():
            yield f"  {when:10} {kind:36} {_size(each.bytes):>10} in {each.calls} exchanges"
    yield ""
    yield (
        f"a piece is {played.piece.flops / 1e12:,.1f} teraflop, {played.piece.fp32_flops / 1e12:,.1f} of them in fp32: "
        f"{run.piece_s:.3g} s; trainer {rate.step_s:.3g} s a step for the optimizer and a version, and "
        f"{1e6 * rate.token_s:.3g} us a token: {run.tokens_per_s:,.0f} tokens a second while it works on pieces, of "
        f"which a rank does {run.tokens_per_s / run.config.processes:,.0f}"
    )
    yield run.fault or f"fits: {_size(run.needed)} of {_size(run.machine.usable)} that {run.machine.name} has to give"


def _row(kind: str, *sizes: int) -> str:
    held, pieces, optimizer, most = (_size(each) if each else "" for each in sizes)
    return f"  {kind:21} {held:>14} {pieces:>13} {optimizer:>17} {most:>29}".rstrip()


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"

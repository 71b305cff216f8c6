"""What is said of a dry run in a terminal, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from etude.rollouts.plan.amounts import flops_of, number_of, of_many, size_of
from etude.rollouts.plan.machines import HERE

if TYPE_CHECKING:
    from etude.rollouts.plan.dry_run import DryRun


def lines_of(run: DryRun) -> Iterator[str]:
    from etude.models.size import active_parameters, parameters_of

    played, axes = run.rehearsal, run.config.mesh
    mesh = ", ".join(f"{axis} {size}" for axis, size in axes.items()) if axes else "each with all weights"
    yield (
        f"{number_of(parameters_of(run.model))} parameters, {number_of(active_parameters(run.model))} active; "
        f"{of_many(run.config.processes, 'rank')} ({mesh}) on {run.machine.name}, no weights read"
    )
    at_once = f", {played.pieces_at_once} at once by all ranks" if run.config.processes > 1 else ""
    yield f"a rank works on pieces of {played.tokens:,} tokens{at_once}"
    yield ""
    yield from _held(run)
    yield from _sent(run)
    yield ""
    yield _speed(run)
    yield (
        run.fault or f"fits: {size_of(run.needed)} of {size_of(run.machine.usable)} that {run.machine.name} has to give"
    )
    yield from run.caveats


def _held(run: DryRun) -> Iterator[str]:
    played = run.rehearsal
    moments = played.held, played.in_pieces, played.in_optimizer
    yield "bytes of the first rank  between steps    in a piece  in the optimizer    in a piece, when it has most"
    for kind in dict.fromkeys((*played.held, *played.most, *played.in_optimizer)):
        yield _row(kind, *(each.get(kind, 0) for each in (*moments, played.most)))
    beside = run.needed - sum(played.fullest.values())
    if run.engines.bytes:
        yield _row("engines beside it", *[run.engines.bytes] * 3, 0)
    for kind, size in played.on_host.items() if run.machine.name == HERE else ():
        yield _row(kind, size, size, size, 0)
    yield _row("in all", *(sum(each.values()) + beside for each in moments), 0)
    if run.machine.name != HERE:
        there = ", ".join(f"{kind} {size_of(size)}" for kind, size in played.on_host.items())
        ranks = min(run.machine.together, run.config.processes)
        judged = (
            "; --host-memory says what there is"
            if run.host_usable is None
            else f" of {size_of(run.host_usable)} to give"
        )
        yield f"in the host's memory, of the rank that has most there: {there}"
        yield f"  of a computer's {of_many(ranks, 'rank')}, where they have most: {size_of(run.on_computer)}{judged}"
    yield ""


def _sent(run: DryRun) -> Iterator[str]:
    links = run.links()
    if not any(links.values()):
        yield "it sends nothing to others"
        return
    yield "bytes that it sends"
    for when, sent in links.items():
        for kind, each in sent.items():
            yield f"  {when:10} {kind:36} {size_of(each.bytes):>10} in {of_many(each.calls, 'exchange')}"


def _speed(run: DryRun) -> str:
    piece, rate = run.rehearsal.piece, run.rate
    each = f", of which a rank does {run.tokens_per_s / run.config.processes:,.0f}" if run.config.processes > 1 else ""
    return (
        f"a piece is {flops_of(piece.flops)}, {piece.fp32_flops / max(1.0, piece.flops):.1%} of them in fp32: "
        f"{run.piece_s:.3g} s; trainer {rate.step_s:.3g} s a step for the optimizer and a version, and "
        f"{1e6 * rate.token_s:.3g} us a token: {run.tokens_per_s:,.0f} tokens a second while it works on pieces{each}"
    )


def _row(kind: str, *sizes: int) -> str:
    held, pieces, optimizer, most = (size_of(each) if each else "" for each in sizes)
    return f"  {kind:21} {held:>14} {pieces:>13} {optimizer:>17} {most:>31}".rstrip()

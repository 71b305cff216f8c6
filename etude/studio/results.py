"""What a run was measured by: rates of its evaluations with their intervals, and sessions of them to read.

Owns the route `…/results`. Rates are of `evaluation-*.json`, which a run writes once for each policy that it has
evaluated; sessions are the archive's, under the phase of that name. Of a run that has evaluated nothing yet all of it
is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from etude.archive.query import Filter
from etude.archive.reader import ArchiveReader, GroupRows
from etude.archive.records import TrajectoryRow
from etude.errors import EtudeError
from etude.rewards.rates import wilson
from etude.serving.openapi import Operation, answers
from etude.studio.archive_shapes import GroupAnswer
from etude.studio.archives import Archives
from etude.studio.groups import group_answer
from etude.studio.routes import ONE, reply
from etude.studio.run import Run
from etude.studio.runs import RECIPE, Runs
from etude.tasks.families import family as family_of

POLICIES = ("base", "after", "control")
"""As a run evaluates them: before training, after it, and what was fine-tuned in as much time."""


@dataclass(frozen=True)
class Rate:
    """How many were solved of those played, and the 95% interval of that share."""

    solved: int
    played: int
    low: float
    high: float


@dataclass(frozen=True)
class RateRow:
    """A set of tasks, or a rung of one: a rate for each policy, None where it has played none of them."""

    name: str
    rates: list[Rate | None]


@dataclass(frozen=True)
class ConductRow:
    """The mean of a session, for each policy; None where it has none such."""

    name: str
    means: list[float | None]


@dataclass(frozen=True)
class Pair:
    """The trained policy against its control: tasks that only one of them has solved, and the hardest of those gained,
    as both played it; None where there is none, or the archive has it no longer."""

    gained: int
    lost: int
    played: GroupAnswer | None


@dataclass(frozen=True)
class Example:
    """A session of the trained policy's that says much in a short time."""

    title: str
    row: TrajectoryRow


@dataclass(frozen=True)
class ResultsAnswer:
    """What a run was measured by. `policies` are those it has evaluated: base, after and control."""

    policies: list[str]
    sets: list[RateRow]
    rungs: list[RateRow]
    """Of the first set."""
    conduct: list[ConductRow]
    """On the first set."""
    pair: Pair | None
    examples: list[Example]


@dataclass(frozen=True)
class _Played:
    """What is read of a rollout of an evaluation (`rollouts.evaluate.Judged`)."""

    task_id: str
    split: str
    rung: int
    solved: bool
    outcome: str
    usage: dict[str, float]
    checked_after_edit: bool
    parallel_reads: int


_FORM = TypeAdapter(list[_Played])
Evaluations = Mapping[str, Sequence[_Played]]


def _used(name: str) -> Callable[[_Played], float]:
    return lambda one: one.usage.get(name, 0)


_CONDUCT: tuple[tuple[str, bool, Callable[[_Played], float]], ...] = (
    ("ran the check after the last edit", False, lambda one: one.checked_after_edit),
    ("turns of a solved session", True, _used("turns")),
    ("tool calls of a solved session", True, _used("tool_calls")),
    ("turns with parallel calls", False, _used("parallel_turns")),
    ("turns with parallel reads", False, lambda one: one.parallel_reads),
    ("error results in a session", False, _used("error_observations")),
    ("malformed calls in a session", False, _used("malformed_calls")),
    ("cut by a limit", False, lambda one: one.outcome == "Truncated"),
)
"""What it is, whether of solved sessions alone, and of one."""


class ResultRoutes:
    """Over the runs of one server."""

    def __init__(self, runs: Runs, archives: Archives) -> None:
        self._runs, self._archives = runs, archives

    @answers(Operation(f"{ONE}/results", "get", "Its evaluations: rates with intervals, and sessions to read",
                       answer=ResultsAnswer))  # fmt: skip
    async def results(self, request: Request) -> Response:
        run = self._runs.run(request.path_params["run"])
        return reply(await asyncio.to_thread(self._answer, run))

    def _answer(self, run: Run) -> ResultsAnswer:
        found = _evaluations(run)
        family = _family(run)
        sets = {"eval": family, "heldout": f"held-out {family}", "real": "real code"}
        rows = [_row(name, found, lambda one, split=split: one.split == split) for split, name in sets.items()]
        first = {policy: [one for one in played if one.split == "eval"] for policy, played in found.items()}
        try:
            reader = self._archives.reader(run) if found else None
        except EtudeError:  # of no use, or somebody else's: the rates stand without it
            reader = None
        return ResultsAnswer(
            policies=list(found),
            sets=[row for row in rows if any(row.rates)],
            rungs=[_row(name, first, lambda one, rung=rung: one.rung == rung) for rung, name in _rungs(family, first)],
            conduct=[_conduct(*each, first) for each in _CONDUCT] if found else [],
            pair=_pair(found, reader) if {"after", "control"} <= found.keys() else None,
            examples=list(_examples(reader)) if reader is not None and "after" in found else [],
        )


def _evaluations(run: Run) -> Evaluations:
    found = {}
    for policy in POLICIES:
        try:
            played = _FORM.validate_python(run.directory.json(f"evaluation-{policy}.json"))
        except ValidationError:  # none yet, or no run's
            continue
        if played:
            found[policy] = played
    return found


def _family(run: Run) -> str:
    rollouts = run.directory.table(RECIPE).get("rollouts")
    return str(rollouts.get("family", ""))[:100] if isinstance(rollouts, dict) else ""


def _rungs(family: str, first: Evaluations) -> Iterator[tuple[int, str]]:
    """Those that were played, with their names. A name with a colon would load a stranger's code."""
    try:
        known = None if ":" in family else family_of(family)
    except EtudeError:
        known = None
    names = dict(zip(known.rungs, known.names, strict=False)) if known else {}
    for rung in sorted({one.rung for played in first.values() for one in played}):
        yield rung, names.get(rung, f"rung {rung}")


def _row(name: str, found: Evaluations, is_in: Callable[[_Played], bool]) -> RateRow:
    return RateRow(name, [_rate([one for one in played if is_in(one)]) for played in found.values()])


def _rate(played: Sequence[_Played]) -> Rate | None:
    solved = sum(one.solved for one in played)
    return Rate(solved, len(played), *wilson(solved, len(played))) if played else None


def _conduct(name: str, of_solved: bool, value: Callable[[_Played], float], first: Evaluations) -> ConductRow:
    chosen = ([value(one) for one in played if one.solved or not of_solved] for played in first.values())
    return ConductRow(name, [fmean(values) if values else None for values in chosen])


def _pair(found: Evaluations, reader: ArchiveReader | None) -> Pair:
    """Of the tasks that both have played."""
    control = {one.task_id: one.solved for one in found["control"]}
    gained = [one for one in found["after"] if one.solved and control.get(one.task_id) is False]
    lost = sum(control.get(one.task_id) is True and not one.solved for one in found["after"])
    played = None
    if gained and reader is not None:
        task = max(gained, key=lambda one: (one.rung, one.usage.get("turns", 0))).task_id
        rows = [row for policy in ("after", "control") if (row := _one(reader, phase=policy, task=task))]
        played = group_answer(reader, GroupRows("pair", task, tuple(rows))) if len(rows) == 2 else None
    return Pair(len(gained), lost, played)


def _examples(reader: ArchiveReader) -> Iterator[Example]:
    chosen = {
        "the shortest success": (True, "turns"),
        "the longest success": (True, "-turns"),
        "a failure": (False, "kept"),
    }
    shown = set[str]()
    for title, (solved, order) in chosen.items():
        row = _one(reader, order, phase="after", solved=solved)
        if row is not None and row.id not in shown:
            shown.add(row.id)
            yield Example(title, row)


def _one(reader: ArchiveReader, order: str = "-kept", **chosen: str | bool) -> TrajectoryRow | None:
    rows = reader.trajectories(Filter(**chosen), order, limit=1).rows  # ty: ignore[invalid-argument-type]
    return rows[0] if rows else None

"""Evaluation: fixed tasks, one rollout each, through the same harness and sandboxes as training.

Owns the fixed sets, what is kept of each rollout, and the figures that the run's last line has of them with the
intervals beside them. Knows nothing of training; the engine serves whatever version it has.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etude.errors import EtudeError
from etude.records import Event, InfraFailed, Task, solved
from etude.rewards.rates import wilson
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import EvaluationConfig
from etude.rollouts.sample import Sample
from etude.rollouts.session import RolloutRequest
from etude.tasks.families import family as family_of
from etude.tasks.ladder import RUNGS

RETRIES = 2


@dataclass(frozen=True)
class Judged:
    """One rollout of an evaluation, as reports and comparisons need it."""

    task_id: str
    split: str
    rung: int
    solved: bool
    outcome: str
    bug: str
    shape: str
    usage: dict[str, int]
    checked_after_edit: bool
    """Whether the last check the agent ran came after its last edit."""
    parallel_reads: int
    """Turns with two or more reading calls."""


def evaluation_set(config: EvaluationConfig, family: str = "ladder") -> list[Task]:
    """The family's tasks, held-out ones and real code, always the same tasks in the same order."""
    tasks = family_of(family).evaluation("eval", config.per_rung)
    tasks += family_of(family).evaluation("heldout", config.heldout_per_rung)
    if config.real:
        from etude.tasks.real import real_tasks

        tasks += real_tasks()
    return tasks


async def evaluate(
    cluster: Cluster,
    tasks: Iterable[Task],
    config: EvaluationConfig,
    label: str,
    on_done: Callable[[Sample], None] = lambda sample: None,
) -> tuple[list[Judged], list[Sample]]:
    """Play every task once; a rollout our machinery failed is played again, and never counted as a failure. The logs of
    all stay in `cluster.evaluated`.
    """
    places = asyncio.Semaphore(config.concurrency)

    async def one(task: Task) -> tuple[Judged, Sample]:
        seed = random.Random(f"evaluation {task.id}").getrandbits(40)  # the same draws for every policy
        failures, what = 0, ""
        for attempt in itertools.count():
            slot, kept = slot_of(label, task, attempt), cluster.evaluated
            request = RolloutRequest(
                slot, label, task, seed, config.temperature, kept=kept.directory, checkpoint_s=None
            )
            async with places:
                sample = await cluster.play_and_judge(request)
            failed = InfraFailed("cancelled")
            if sample is not None:
                if not isinstance(sample.outcome, InfraFailed):
                    on_done(sample)
                    await kept.keep(sample)
                    return judged(task, sample, await asyncio.to_thread(kept.events, slot)), sample
                failed = sample.outcome
            failures, what = failures + (not failed.lost), failed.what  # how often processes may die is bounded already
            if failures > RETRIES:
                break
        raise EtudeError(f"evaluation of {task.id} failed {RETRIES + 1} times for infrastructure: {what}")

    results = await asyncio.gather(*(one(task) for task in tasks))
    return [result for result, _ in results], [sample for _, sample in results]


def slot_of(label: str, task: Task, attempt: int) -> str:
    """Where the rollout of an attempt at a task is kept."""
    return f"{label}/{task.id}/{attempt}"


def judged(task: Task, sample: Sample, events: Iterable[Event]) -> Judged:
    facts = task.provenance
    calls = [event.data for event in events if event.kind == "tool_call"]
    return Judged(
        task_id=task.id,
        split=task.split,
        rung=int(facts.get("rung", 0)),
        solved=solved(sample.outcome),
        outcome=type(sample.outcome).__name__,
        bug=str(facts.get("bug", "")),
        shape=str(facts.get("shape", "")),
        usage=dict(sample.usage),
        checked_after_edit=_checked_after_edit(calls),
        parallel_reads=_parallel_reads(calls),
    )


def _checked_after_edit(calls: list[Any]) -> bool:
    names = [call["name"] for call in calls]
    edits = [index for index, name in enumerate(names) if name in ("edit_file", "write_file")]
    return bool(edits) and "run_terminal_cmd" in names[edits[-1] + 1 :]


def _parallel_reads(calls: list[Any]) -> int:
    reading = [call["turn"] for call in calls if call["name"] in ("read_file", "grep", "list_dir")]
    return sum(reading.count(turn) >= 2 for turn in set(reading))


def pass_rate(results: Iterable[Judged], **facts: Any) -> tuple[int, int]:
    """Solved and played among the results whose fields equal `facts`."""
    chosen = [r for r in results if all(getattr(r, name) == value for name, value in facts.items())]
    return sum(r.solved for r in chosen), len(chosen)


def as_json(results: Iterable[Judged]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]


def from_json(rows: Iterable[dict[str, Any]]) -> list[Judged]:
    return [Judged(**row) for row in rows]


def rate(results: Sequence[Judged], **facts: Any) -> float | None:
    """None where nothing was played: a rate nobody measured is not zero."""
    passed, played = pass_rate(results, **facts)
    return passed / played if played else None


def summarise(base: Sequence[Judged], after: Sequence[Judged], control: Sequence[Judged]) -> dict[str, Any]:
    """pass@1 before, after and of the control: the ladder, its rungs, the held-out ladder, real code."""
    return {
        "base_pass1": rate(base, split="eval"),
        "base_pass1_ci": wilson(*pass_rate(base, split="eval")),
        "pass1": rate(after, split="eval"),
        "pass1_ci": wilson(*pass_rate(after, split="eval")),
        "sft_control_pass1": rate(control, split="eval"),
        "sft_control_pass1_ci": wilson(*pass_rate(control, split="eval")),
        "heldout_before": rate(base, split="heldout"),
        "heldout_after": rate(after, split="heldout"),
        "heldout_control": rate(control, split="heldout"),
        "real_before": rate(base, split="real"),
        "real_after": rate(after, split="real"),
        "rungs": {
            str(rung): [rate(results, split="eval", rung=rung) for results in (base, after, control)] for rung in RUNGS
        },
    }

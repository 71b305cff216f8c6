"""What a run found, and what two runs found of each other.

Owns the names of the figures: `summarise` for one run, `compare` for two, as plain JSON. Attempts without a verdict are
in no rate; they are counted, and named. Plays nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from etude.bench.attempts import Attempt
from etude.bench.measures import (
    Count,
    bootstrap,
    mcnemar,
    pass_at_k,
    pass_rate,
    rate_interval,
    sign_permutation,
)
from etude.bench.results import Run
from etude.errors import ConfigError


def counts_of(attempts: Sequence[Attempt]) -> dict[str, Count]:
    """Solved and played of each task that has a verdict at all, in the order they come."""
    found: dict[str, list[bool]] = defaultdict(list)
    for attempt in attempts:
        if attempt.solved is not None:
            found[attempt.task].append(attempt.solved)
    return {task: (sum(solved), len(solved)) for task, solved in found.items()}


def summarise(run: Run) -> dict[str, Any]:
    """The figures of a run; rates are None where nothing got a verdict."""
    judged = [attempt for attempt in run.attempts if attempt.solved is not None]
    failed = [attempt for attempt in run.attempts if attempt.solved is None]
    counts = counts_of(judged)
    splits = sorted({attempt.split for attempt in judged})
    return {
        "name": run.name,
        "policy": run.head["policy"],
        "tasks": len(run.head["tasks"]),
        "planned": run.planned,
        "judged": len(judged),
        "solved": sum(bool(attempt.solved) for attempt in judged),
        "no_verdict": [
            {"task": attempt.task, "attempt": attempt.attempt, "why": attempt.why} for attempt in failed
        ],
        "pass": _passes(list(counts.values()), int(run.head["attempts"])),
        "splits": {
            split: _passes(list(counts_of([each for each in judged if each.split == split]).values()), 1)["1"]
            for split in splits
        },
        "verdicts": dict(Counter(attempt.why for attempt in judged).most_common()),
        "stops": dict(Counter(attempt.stop for attempt in judged).most_common()),
        "touched": sum(bool(attempt.touched) for attempt in judged),
        "conduct": _conduct(judged),
        "seconds": _seconds(run),
    }  # fmt: skip


def _passes(counts: Sequence[Count], most: int) -> dict[str, Any]:
    """By k, for 1, 2, 4, … and `most`. A task with fewer verdicts than k has no pass@k, and is left out of it."""
    found = {}
    for k in sorted({1, most, *(2**power for power in range(1, 10) if 2**power < most)}):
        enough = [count for count in counts if count[1] >= k]
        if not enough:
            found[str(k)] = {"rate": None, "low": 0.0, "high": 1.0, "tasks": 0}
            continue
        values = [pass_at_k(count, k) for count in enough]
        low, high = rate_interval(enough) if k == 1 else bootstrap(values)
        found[str(k)] = {"rate": fmean(values), "low": low, "high": high, "tasks": len(enough)}
    return found


def _conduct(judged: Sequence[Attempt]) -> dict[str, float | None]:
    """How it works, a session on average."""

    def mean(values: Sequence[float]) -> float | None:
        return fmean(values) if values else None

    turns = sum(attempt.usage["turns"] for attempt in judged)
    won = [attempt for attempt in judged if attempt.solved]
    return {
        "turns": mean([attempt.usage["turns"] for attempt in judged]),
        "turns_of_solved": mean([attempt.usage["turns"] for attempt in won]),
        "sampled_tokens": mean([attempt.usage["sampled_tokens"] for attempt in judged]),
        "sampled_tokens_of_solved": mean([attempt.usage["sampled_tokens"] for attempt in won]),
        "tools_a_turn": sum(attempt.usage["tool_calls"] for attempt in judged) / turns if turns else None,
        "parallel_share": sum(attempt.usage["parallel_turns"] for attempt in judged) / turns if turns else None,
        "looks_before_edit": mean([attempt.looked for attempt in judged if attempt.edited]),
        "malformed_calls": mean([attempt.usage["malformed_calls"] for attempt in judged]),
        "errors": mean([attempt.usage["error_observations"] for attempt in judged]),
    }


def _seconds(run: Run) -> dict[str, float | None]:
    seconds = sorted(run.seconds.values())
    if not seconds:
        return {"median": None, "p95": None}
    return {"median": median(seconds), "p95": seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]}


def compare(first: Run, second: Run) -> dict[str, Any]:
    """The second against the first, on the tasks that both have verdicts on. Raises ConfigError where they share none,
    or where a task is not the same in both."""
    shared = first.head["tasks"].keys() & second.head["tasks"].keys()
    for task in sorted(shared):
        if first.head["tasks"][task] != second.head["tasks"][task]:
            raise ConfigError(f"{task} is not the same task in {first.directory} and {second.directory}; play it anew")
    counts = [counts_of(run.attempts) for run in (first, second)]
    paired = [task for task in counts[0] if task in counts[1]]
    if not paired:
        raise ConfigError(f"{first.directory} and {second.directory} have no task in common that both got verdicts on")
    rates = [[found[task][0] / found[task][1] for task in paired] for found in counts]
    differences = [after - before for before, after in zip(*rates, strict=True)]
    single = all(found[task][1] == 1 for found in counts for task in paired)
    better = [task for task, difference in zip(paired, differences, strict=True) if difference > 0]
    worse = [task for task, difference in zip(paired, differences, strict=True) if difference < 0]
    low, high = bootstrap(differences)
    return {
        "first": first.name,
        "second": second.name,
        "paired_tasks": len(paired),
        "left_out": len(first.head["tasks"].keys() | second.head["tasks"].keys()) - len(paired),
        "same_harness": first.head["harness"] == second.head["harness"],
        "rates": [pass_rate([found[task] for task in paired]) for found in counts],
        "difference": fmean(differences),
        "low": low,
        "high": high,
        "test": "McNemar, exact" if single else "sign permutation over tasks",
        "p": mcnemar(len(worse), len(better)) if single else sign_permutation(differences),
        "better": better,
        "worse": worse,
    }

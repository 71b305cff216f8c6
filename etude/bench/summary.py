"""What a run found, and what two runs found of each other.

Owns the names of the figures: `summarise` for one run, `compare` for two, as plain JSON. Attempts without a verdict are
in no rate; they are counted, and named. Plays nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
from etude.bench.text import verdict_text
from etude.errors import ConfigError
from etude.harness.conduct import habits
from etude.rewards.judge.aspects import ASPECTS

SURE = 0.05
"""A difference as large between two equal policies is rarer than this, or may be luck."""
TASKS_OWN = "the tasks' own"
"""Criteria that one task alone has, under one name."""


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
        "rubric": _rubric(judged),
        "faults": _means([attempt.faults for attempt in judged if attempt.faults]),
        "cost": _cost(judged),
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

    def used(name: str, attempts: Sequence[Attempt] = judged) -> list[int]:
        return [attempt.usage.get(name, 0) for attempt in attempts]

    turns = sum(used("turns"))
    won = [attempt for attempt in judged if attempt.solved]
    return {
        "turns": mean(used("turns")),
        "turns_of_solved": mean(used("turns", won)),
        "sampled_tokens": mean(used("sampled_tokens")),
        "sampled_tokens_of_solved": mean(used("sampled_tokens", won)),
        "tools_a_turn": sum(used("tool_calls")) / turns if turns else None,
        "parallel_share": sum(used("parallel_turns")) / turns if turns else None,
        "looks_before_edit": mean([attempt.conduct.looked for attempt in judged if attempt.conduct.edited]),
        "malformed_calls": mean(used("malformed_calls")),
        "errors": mean(used("error_observations")),
        **habits([attempt.conduct for attempt in judged]),
    }


def _rubric(judged: Sequence[Attempt]) -> dict[str, dict[str, Any]]:
    """Of every criterion that was asked of more than one task, and of all that single tasks brought together: how often
    it was met, of the attempts it has a verdict on, with a 95% interval by tasks; and how many have none."""
    tasks_of: dict[str, set[str]] = defaultdict(set)
    for attempt in judged:
        for name in attempt.rubric:
            tasks_of[name].add(attempt.task)
    met: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    missing = Counter[str]()
    for attempt in judged:
        for criterion, verdict in attempt.rubric.items():
            name = criterion if criterion in ASPECTS or len(tasks_of[criterion]) > 1 else TASKS_OWN
            missing[name] += verdict is None
            if verdict is not None:
                met[name][attempt.task].append(verdict)
    return {name: _share(list(met[name].values())) | {"not_judged": missing[name]} for name in missing}


def _share(by_task: Sequence[Sequence[bool]]) -> dict[str, Any]:
    counts = [(sum(verdicts), len(verdicts)) for verdicts in by_task]
    if not counts:
        return {"rate": None, "low": 0.0, "high": 1.0, "judged": 0}
    low, high = rate_interval(counts)
    return {"rate": pass_rate(counts), "low": low, "high": high, "judged": sum(played for _, played in counts)}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each key, over the rows."""
    return {key: fmean(row.get(key, 0.0) for row in rows) for key in rows[0]} if rows else {}


def _cost(judged: Sequence[Attempt]) -> dict[str, float | None]:
    """All together, an attempt, and a solved one; None where a price is not known."""
    costs = [attempt.cost for attempt in judged]
    known = [cost for cost in costs if cost is not None]
    if not known or len(known) < len(costs):
        return {"total": None, "attempt": None, "solved": None}
    solved = sum(bool(attempt.solved) for attempt in judged)
    return {"total": sum(known), "attempt": fmean(known), "solved": sum(known) / solved if solved else None}


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
    p = mcnemar(len(worse), len(better)) if single else sign_permutation(differences)
    found: dict[str, Any] = {
        "first": {"name": first.name, "rate": pass_rate([counts[0][task] for task in paired])},
        "second": {"name": second.name, "rate": pass_rate([counts[1][task] for task in paired])},
        "tasks": len(paired),
        "left_out": len(first.head["tasks"].keys() | second.head["tasks"].keys()) - len(paired),
        "same_harness": first.head["harness"] == second.head["harness"],
        "better": better,
        "worse": worse,
        "alike": len(paired) - len(better) - len(worse),
        "difference": fmean(differences),
        "low": low,
        "high": high,
        "test": "McNemar, exact" if single else "sign permutation over tasks",
        "p": p,
        "verdict": _verdict(fmean(differences), p, bool(better or worse)),
    }
    return {**found, "said": verdict_text(found)}


def _verdict(difference: float, p: float, differ: bool) -> str:
    """Of the second run against the first, in one word or two; `text.verdict_text` says it in a sentence."""
    if not differ:
        return "no difference"
    return "may be luck" if p >= SURE else "better" if difference > 0 else "worse"

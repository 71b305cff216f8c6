"""A run's figures, and a comparison, as text. Computes no figure that the summary has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CONDUCT = {
    "turns": "turns",
    "turns_of_solved": "turns, where solved",
    "sampled_tokens": "tokens sampled",
    "sampled_tokens_of_solved": "tokens sampled, where solved",
    "tools_a_turn": "tool calls a turn",
    "parallel_share": "share of turns with parallel calls",
    "looks_before_edit": "reads and searches before the first edit",
    "malformed_calls": "malformed calls",
    "errors": "results that were errors",
    "edits_read_first": "share of edits of files read before",
    "tests_written": "test files written",
    "tests_run": "runs of tests",
    "own_tests_run": "share of those who wrote tests and ran them after",
    "lint_checks": "looks at lints",
    "lints_fixed": "share of the lints told that were fixed",
    "unchecked_claims": "share that claim tests they did not run",
}


FAULTS = {
    "lints": "lints brought in",
    "style": "of places break a convention of the project",
    "left_undone": "things left undone by its own account",
    "talk": "faults of the last message",
}


_NAMED = 5
"""So many tasks of a kind are named, and the others counted."""


def cost_of(cost: Mapping[str, float | None]) -> str:
    """What a run cost, where it is known."""
    each = "" if cost["solved"] is None else f", {cost['solved']:.4g} a solved one"
    return f"cost: {cost['total']:.4g} in all, {cost['attempt']:.4g} an attempt{each}"


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def policy_name(policy: Mapping[str, Any]) -> str:
    match policy.get("kind"):
        case "endpoint":
            return f"{policy.get('model')} at {policy.get('url')}"
        case "acp":
            return f"ACP agent: {' '.join(policy.get('command') or ())}"
        case "solution":
            return f"solutions, skill {policy.get('skill') or 0:g}"
        case "hunter":
            return "the script that hunts bugs"
        case _:
            return f"checkpoint, temperature {policy.get('temperature') or 0:g}"


def run_summary(summary: Mapping[str, Any]) -> str:
    """Of one run: the rates, what they do not count, and how the policy works."""
    lines = [f"{summary['name']}: {policy_name(summary['policy'])}"]
    lines.append(f"{summary['tasks']} tasks, {summary['judged']} of {summary['planned']} attempts judged")
    for k, found in summary["pass"].items():
        lines.append(f"  pass@{k:<4} {percent(found['rate']):>6}   {interval(found)}   {found['tasks']} tasks")
    if len(summary["splits"]) > 1:
        lines += [f"  {name:<9} {percent(one['rate']):>6}   {interval(one)}" for name, one in summary["splits"].items()]
    lines.append("verdicts: " + _counted(summary["verdicts"]) + "; sessions ended: " + _counted(summary["stops"]))
    for key, name in CONDUCT.items():
        if summary["conduct"][key] is not None:
            lines.append(f"  {summary['conduct'][key]:>8.2f} {name}")
    lines += [f"  {name:<15} {percent(one['rate']):>6}   {interval(one)}   {one['not_judged']} not judged"
              for name, one in summary["rubric"].items()]  # fmt: skip
    lines += [f"  {count:>8.2f} {FAULTS[name]}" for name, count in summary["faults"].items()]
    if summary["cost"]["total"] is not None:
        lines.append(cost_of(summary["cost"]))
    if summary["no_verdict"]:
        lines.append(f"{len(summary['no_verdict'])} attempts without a verdict, in no rate:")
        lines += [f"  {one['task']} #{one['attempt']}: {one['why']}" for one in summary["no_verdict"][:20]]
    return "\n".join(lines)


def interval(found: Mapping[str, Any]) -> str:
    return f"95%: {percent(found['low'])} to {percent(found['high'])}"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def verdict_text(found: Mapping[str, Any]) -> str:
    """The verdict of a comparison as a sentence, with the figures that it stands for."""
    first, second = found["first"]["name"], found["second"]["name"]
    p = f"(p = {found['p']:.3g}, {found['test']})"
    luck = f"Two equal policies would differ by this much in {_in_hundred(found['p'])} such comparisons {p}."
    match found["verdict"]:
        case "no difference":
            return f"No difference: {first} and {second} solved the same."
        case "may be luck":
            return f"That may be luck. {luck} More tasks, or more attempts at each, would tell."
        case verdict:
            return f"{second} is {verdict} than {first}. {luck}"


def _in_hundred(p: float) -> str:
    if p < 0.001:
        return "fewer than 1 of 1,000"
    return f"{100 * p:.0f} of 100" if p >= 0.01 else f"{1000 * p:.0f} of 1,000"


def comparison_text(found: Mapping[str, Any]) -> str:
    """Of two runs: what each solved, on which tasks they differ, and whether that can be luck."""
    runs = (found["first"], found["second"])
    second, width = found["second"]["name"], max(len(run["name"]) for run in runs)
    lines = [f"{second} against {found['first']['name']}, on {_tasks(found['tasks'])} that both have played"]
    lines += [f"  {run['name']:<{width}} {percent(run['rate']):>6} solved" for run in runs]
    lines.append(
        f"  {second} did better on {_tasks(len(found['better']))}, worse on {_tasks(len(found['worse']))}, "
        f"and the same on {_tasks(found['alike'])}"
    )
    lines += [f"    {kind}: {_some(found[kind])}" for kind in ("better", "worse") if found[kind]]
    if found["low"] < found["high"]:
        low, high = (f"{100 * found[key]:+.1f}" for key in ("low", "high"))
        points = f"{100 * found['difference']:+.1f} points"
        lines.append(f"  difference {points}, 95% interval {low} to {high}")
    lines.append(found["said"])
    if found["left_out"]:
        lines.append(f"{_tasks(found['left_out'])} left out: both runs must have a verdict on them")
    if not found["same_harness"]:
        lines.append("The two were played with different harness settings.")
    return "\n".join(lines)


def _some(tasks: Sequence[str]) -> str:
    return ", ".join(tasks[:_NAMED]) + (f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else "")


def _tasks(count: int) -> str:
    return f"{count} {'task' if count == 1 else 'tasks'}"

"""A run's figures, and a comparison, as text. Computes no figure that the summary has."""

from __future__ import annotations

from collections.abc import Mapping
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
}


FAULTS = {
    "lints": "lints brought in",
    "style": "of places break a convention of the project",
    "left_undone": "things left undone by its own account",
    "talk": "faults of the last message",
}


def cost_of(cost: Mapping[str, float | None]) -> str:
    """What a run cost, where it is known."""
    each = "" if cost["solved"] is None else f", {cost['solved']:.4g} a solved one"
    return f"cost: {cost['total']:.4g} in all, {cost['attempt']:.4g} an attempt{each}"


def percent(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"


def policy_name(policy: Mapping[str, Any]) -> str:
    match policy["kind"]:
        case "endpoint":
            return f"{policy['model']} at {policy['url']}"
        case "acp":
            return f"ACP agent: {' '.join(policy['command'])}"
        case "solution":
            return f"solutions, skill {policy['skill']:g}"
        case _:
            return f"checkpoint, temperature {policy['temperature']:g}"


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


def verdict_of(found: Mapping[str, Any]) -> str:
    """What a comparison comes to, in a sentence."""
    if found["p"] >= 0.05:
        return "No difference that these tasks could show."
    return f"{found['second']} solves {'more' if found['difference'] > 0 else 'less'} than {found['first']}."


def comparison_text(found: Mapping[str, Any]) -> str:
    """Of two runs: the difference, how sure it is, and the tasks it is made of."""
    first, second = found["rates"]
    lines = [
        f"{found['second']} against {found['first']}, {found['paired_tasks']} paired tasks",
        f"  pass@1   {percent(first)} → {percent(second)}",
        f"  difference {100 * found['difference']:+.1f} points   "
        f"95%: {100 * found['low']:+.1f} to {100 * found['high']:+.1f}   p = {found['p']:.4g} ({found['test']})",
        f"  better on {len(found['better'])} tasks, worse on {len(found['worse'])}",
        verdict_of(found),
    ]
    if found["left_out"]:
        lines.append(f"{found['left_out']} tasks are left out: both runs must have a verdict on them")
    if not found["same_harness"]:
        lines.append("The two were played with different harness settings.")
    return "\n".join(lines)

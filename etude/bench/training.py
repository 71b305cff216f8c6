"""The page of a training run: one HTML file with everything in it.

Owns what report.html says of a run of `etude train`; it is made from the files a run leaves (summary.json,
metrics.jsonl, evaluation-*.json, examples.json, pair.json) and can be made again from them. Computes no figure that
the summary has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.bench.curves import axes_of, curves
from etude.bench.html import figure, headline, svg, table, text, write_html
from etude.rewards.rates import wilson
from etude.rollouts.evaluate import Judged, from_json, pass_rate
from etude.rollouts.lines import rows
from etude.tasks.families import family as family_of

LABELS = {"base": "base", "after": "after RL", "control": "fine-tuning control"}
COLOURS = {"base": "#8a94a6", "after": "#2f6fed", "control": "#e08a2e"}


def write_report(directory: Path) -> Path:
    """Make report.html of a finished run; returns its path."""
    summary = json.loads((directory / "summary.json").read_text())
    recipe = json.loads((directory / "recipe.json").read_text())
    lines = rows(directory / "metrics.jsonl")
    results = {
        label: from_json(json.loads(path.read_text()))
        for label in LABELS
        if (path := directory / f"evaluation-{label}.json").exists()
    }
    family = recipe["rollouts"]["family"]
    examples = _read(directory / "examples.json")
    parts = [
        f"<h1>Etude · {text(recipe['name'])} · seed {recipe['seed']}</h1>",
        _headline(summary),
        "<h2>Held-out tasks, rung by rung</h2>" + _rungs_plot(results, family) + _table_of_sets(results, family),
        "<h2>Training</h2><div class=plots>" + curves(lines) + _ages_plot(summary) + _cpu_plot(summary) + "</div>",
        "<h2>What changed in how it works</h2>" + _behaviour(results),
        shown_side_by_side(_read(directory / "pair.json")),
        "<h2>Three sessions</h2>" + "".join(_example(title, example) for title, example in examples.items()),
        "<h2>Use counts</h2>" + _used(summary["counters"]),
        "<h2>Recipe</h2><details><summary>every key</summary><pre>"
        + text(json.dumps(recipe, indent=1))
        + "</pre></details>",
    ]
    return write_html(directory / "report.html", "Etude run", parts)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _headline(summary: dict[str, Any]) -> str:
    """What was played, before and after, and how the control did on it."""
    low, high = summary["pass1_ci"]
    told = (
        (f"pass@1, 95% interval {low:.0%} to {high:.0%}", "base_pass1", "pass1"),
        ("held-out shapes, bugs and words", "heldout_before", "heldout_after"),
        ("real code", "real_before", "real_after"),
    )
    figures = [
        (f"{summary[before]:.0%} → {summary[after]:.0%}", name)
        for name, before, after in told
        if summary[after] is not None
    ]
    figures.append((f"{summary['wall_s'] / 60:.1f} min", f"{summary['samples_per_s']:.1f} rollouts a second"))
    controls = (("pass@1", "pass1", "sft_control_pass1"), ("held-out", "heldout_after", "heldout_control"))
    against = [
        f"{name} {summary[control]:.0%}, against {summary[after]:.0%} after reinforcement learning"
        for name, after, control in controls
        if summary.get(control) is not None
    ]
    said = f"<p>Fine-tuning control at equal CPU time: {'; '.join(against)}.</p>" if against else ""
    return headline(figures) + said


def _rungs_plot(results: dict[str, list[Judged]], family: str) -> str:
    rungs = family_of(family).rungs
    drawn = figure(9, 3)
    axes = drawn.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    width = 0.8 / len(results)
    for place, (label, judged) in enumerate(results.items()):
        counts = [pass_rate(judged, split="eval", rung=rung) for rung in rungs]
        rates = [passed / max(1, played) for passed, played in counts]
        bounds = [wilson(*count) for count in counts]
        errors = [
            [max(0.0, r - b[0]) for r, b in zip(rates, bounds, strict=True)],
            [max(0.0, b[1] - r) for r, b in zip(rates, bounds, strict=True)],
        ]
        at = [rung + (place - (len(results) - 1) / 2) * width for rung in rungs]
        axes.bar(at, rates, width, yerr=errors, label=LABELS[label], color=COLOURS[label], ecolor="#555", capsize=2)
    axes.set_xticks(list(rungs), [name.replace(" ", "\n", 1) for name in family_of(family).names], fontsize=8)
    axes.set_ylim(0, 1)
    axes.set_ylabel("pass@1")
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    return svg(drawn)


def _table_of_sets(results: dict[str, list[Judged]], family: str) -> str:
    rows = []
    for split, name in (("eval", family), ("heldout", f"held-out {family}"), ("real", "real code")):
        row = [name]
        for judged in results.values():
            passed, played = pass_rate(judged, split=split)
            low, high = wilson(passed, played)
            row.append(
                f"{passed / played:.1%} <span class=faint>({low:.0%}–{high:.0%}, n={played})</span>" if played else "–"
            )
        rows.append(row)
    return table(["tasks", *(LABELS[label] for label in results)], rows)


def _ages_plot(summary: dict[str, Any]) -> str:
    drawn = figure(6, 2.9)
    axes = axes_of(drawn, "Age of the tokens that were trained on")
    ages = {int(age): tokens for age, tokens in summary["counters"]["age_tokens"].items()}
    axes.bar(list(ages), [tokens / max(1, sum(ages.values())) for tokens in ages.values()], color="#2f6fed")
    axes.set_xticks(sorted(ages))
    axes.set_xlabel("versions between sampling and training", fontsize=8)
    axes.set_ylabel("share of trained tokens", fontsize=8)
    return svg(drawn)


def _cpu_plot(summary: dict[str, Any]) -> str:
    drawn = figure(6, 2.9)
    axes = axes_of(drawn, "CPU time of training, by process")
    parts = {name: seconds for name, seconds in summary["cpu_by_part"].items() if seconds > 0.5}
    axes.barh(list(parts)[::-1], list(parts.values())[::-1], color="#8a94a6")
    busy = f"engine busy {summary['engine_busy']:.0%}, trainer busy {summary['trainer_busy']:.0%} of the time"
    axes.set_xlabel(f"seconds; {busy}", fontsize=8)
    return svg(drawn)


def _behaviour(results: dict[str, list[Judged]]) -> str:
    def mean(judged: Sequence[Judged], value: Any) -> str:
        values = [value(one) for one in judged]
        return f"{sum(values) / len(values):.2f}" if values else "–"

    sets = [[one for one in judged if one.split == "eval"] for judged in results.values()]
    won = [[one for one in judged if one.solved] for judged in sets]
    rows = [
        ["ran the check after the last edit", *(mean(s, lambda one: one.checked_after_edit) for s in sets)],
        ["turns of a solved session", *(mean(s, lambda one: one.usage["turns"]) for s in won)],
        ["tool calls of a solved session", *(mean(s, lambda one: one.usage["tool_calls"]) for s in won)],
        ["turns with parallel calls", *(mean(s, lambda one: one.usage["parallel_turns"]) for s in sets)],
        ["turns with parallel reads", *(mean(s, lambda one: one.parallel_reads) for s in sets)],
        ["error results in a session", *(mean(s, lambda one: one.usage["error_observations"]) for s in sets)],
        ["malformed calls in a session", *(mean(s, lambda one: one.usage["malformed_calls"]) for s in sets)],
        ["cut by a limit", *(mean(s, lambda one: one.outcome == "Truncated") for s in sets)],
    ]
    return table(["per session", *(LABELS[label] for label in results)], rows)


def shown_side_by_side(pair: dict[str, Any]) -> str:
    """One task, played by the trained policy and by its control, in two columns."""
    if not pair:
        return ""
    head = "<h2>The same task, after reinforcement learning and after fine-tuning</h2>"
    said = (
        f"<p>Of the tasks that both played, {pair['gained']} were solved only after reinforcement learning, and "
        f"{pair['lost']} only by the control.</p>"
    )
    if "task" not in pair:
        return head + said
    columns = "".join(
        f"<div><h3>{LABELS[label]}</h3>{''.join(map(_event, events))}</div>"
        for label, events in pair["sessions"].items()
    )
    return head + said + f"<p>{text(pair['task'])}</p><div class=pair>{columns}</div>"


def _example(title: str, example: dict[str, Any]) -> str:
    body = "".join(_event(event) for event in example["events"])
    return f"<details><summary>{text(title)} · {text(example['task'])}</summary>{body}</details>"


def _event(event: dict[str, Any]) -> str:
    if event["kind"] == "prompt":
        return f"<p><b>{text(event['user'])}</b></p>"
    if event["kind"] == "tool_call":
        arguments = event.get("arguments", {"": event.get("raw", "")})
        if event["name"] == "edit_file":
            shown = f"<pre>{text(arguments.get('path', ''))}\n" + _diff(arguments) + "</pre>"
        else:
            shown = "<pre>" + text("  ".join(str(value) for value in arguments.values())) + "</pre>"
        return f"<div class=call><b>{text(event['name'])}</b>{shown}</div>"
    if event["kind"] == "tool_result":
        return f"<pre class='{'no' if event.get('error') else ''}'>{text(event['text'])}</pre>"
    if event["kind"] == "end":
        return f"<p class=faint>ended: {text(event['stop'])}</p>"
    return ""


def _diff(arguments: dict[str, Any]) -> str:
    old = "".join(f"<span class=no>- {text(line)}</span>\n" for line in str(arguments.get("old", "")).splitlines())
    return old + "".join(
        f"<span class=yes>+ {text(line)}</span>\n" for line in str(arguments.get("new", "")).splitlines()
    )


def _used(counters: Mapping[str, Any]) -> str:
    """What was used, and on one line what was not."""
    used = {name: value for name, value in counters.items() if value}
    unused = ", ".join(name for name in counters if name not in used)
    rows = [(name, _plain(value)) for name, value in used.items()]
    return table(["counter", ""], rows) + f"<p class=faint>Not used: {unused or 'none'}</p>"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count:,}" for name, count in value.items()) or "none"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"

"""The page of a session on a GPU: what was asked, what came of it, the figures, and the recipe beside TRL.

Owns `page_of`. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parts import TINY, Part

BESIDE = ("tokens_per_s", "samples_per_s", "scored_per_s", "solve_rate", "steps", "minutes")


def page_of(found: Mapping[str, Any], parts: Sequence[Part]) -> str:
    machine, told = found["machine"], found["parts"]
    packages = [f"{name} {machine[name]}" for name in ("torch", "triton", "transformers", "trl") if machine[name]]
    where = ["no GPU" if found["small"] else machine["device"], *packages]
    lines = [
        "# A session on a GPU", "",
        f"{found['started']}, commit {found['commit']}, {', '.join(where)}.", "",
        *([NO_GPU, ""] if found["small"] else []),
        *([TINY_MODEL, ""] if "recipe" in told and found["model"] == TINY and not found["small"] else []),
        "| part | asks | outcome | seconds |", "|---|---|---|---|",
        *(f"| {name} | {each['asks']} | {_outcome(each)} | {each.get('seconds', '')} |" for name, each in told.items()),
    ]  # fmt: skip
    for part in parts:
        if figures := told.get(part.name, {}).get("figures"):
            lines += ["", *_figures(part, figures, judged=not found["small"])]
    ours, theirs = (told.get(name, {}).get("figures") for name in ("recipe", "trl"))
    if ours and theirs:
        lines += ["", *_beside(ours, theirs)]
    return "\n".join(lines) + "\n"


NO_GPU = (
    "**Nothing here is a measurement.** No GPU was used: kernels ran in Triton's interpreter and the recipe on the "
    "CPU, at small sizes. Where the outcome is *played small*, what the part checks before it times anything held."
)
TINY_MODEL = (
    "The recipe and TRL trained models/etude-tiny, of 1.5 million parameters: it shows that they run on the GPU. For "
    "figures that mean something, give `--model` a checkpoint of Qwen3-0.6B."
)


def _outcome(told: Mapping[str, Any]) -> str:
    reason = str(told.get("reason", "")).replace("|", "\\|").replace("\n", " ")
    return f"{told['outcome']}: {reason}" if reason else told["outcome"]


def _figures(part: Part, figures: Mapping[str, Any], judged: bool) -> list[str]:
    """One table of a part's plain figures; what is nested is in session.json alone."""
    plain = {name: each for name, each in figures.items() if name != "device" and not isinstance(each, dict | list)}
    rows = [f"| {name} | {_number(each)} | {_aim(part, name, each, judged)} |" for name, each in plain.items()]
    return [f"## {part.name}", "", "| figure | value | aim |", "|---|---|---|", *rows]


def _aim(part: Part, name: str, value: Any, judged: bool) -> str:
    if name not in part.aims:
        return ""
    how, bound = part.aims[name]
    met = value >= bound if how == "at least" else value <= bound
    return f"{how} {bound:g}" + (f": {'met' if met else 'missed'}" if judged else "")


def _beside(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    rows = []
    for name in BESIDE:
        one, other = ours.get(name), theirs.get(name)
        ratio = f"{one / other:.2f}" if name.endswith("_per_s") and one is not None and other else ""
        rows.append(f"| {name} | {_number(one)} | {_number(other)} | {ratio} |")
    return ["## The recipe beside TRL", "", "| | etude | TRL | ratio |", "|---|---|---|---|", *rows]


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

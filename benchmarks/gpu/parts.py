"""What `session.py` asks of a GPU: its parts, and what is read from the two that train.

Owns `Part` and `PARTS`. A part is a command; it ends with a JSON line, or leaves files that `read` finds its figures
in. Starts nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from etude.rollouts.lines import rows

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "recipes/one-gpu.toml"
TINY = "models/etude-tiny"
RUN_SHARE, MOST_MINUTES = 0.8, 10.0
"""What a training part has of its time by its own clock; the rest is for loading, and for a step that is under way."""
ACCELERATORS = ("rtx-4090", "a100", "h100", "h200", "b200", "mi300x")
"""Those that a dry run knows."""


class Given(NamedTuple):
    """What a part's command is made of."""

    out: Path
    model: str
    minutes: float
    """Of training."""
    small: bool
    """Without a GPU: sizes for the interpreter."""
    device: str | None

    @property
    def accelerator(self) -> str:
        """By a dry run's name; an H100 where it is none of those, or there is none."""
        words = (self.device or "").lower().replace(" ", "-")
        return next((name for name in ACCELERATORS if name in words), "h100")


class Part(NamedTuple):
    name: str
    asks: str
    share: float
    """Of the session's time: minutes of thirty."""
    command: Callable[[Given], list[str]]
    read: Callable[[Given], dict[str, Any]] | None = None
    """Figures from what it wrote, also where it was ended in the middle; else they are its last JSON line."""
    left_out: Callable[[bool], str | None] = lambda small: None
    """Why it is not played, without a GPU (`small`) or with one; None: it is."""
    aims: Mapping[str, tuple[str, float]] = {}
    """Figures that are to be at least or at most so much."""
    variables: Mapping[str, str] = {}


def program(name: str, large: str, small: str) -> Callable[[Given], list[str]]:
    """A program of this folder, by what it is given on a GPU and in the interpreter."""
    return lambda given: [sys.executable, f"benchmarks/gpu/{name}.py", *(small if given.small else large).split()]


def plan(given: Given) -> list[str]:
    return [*ETUDE, "train", RECIPE, "--dry-run", "--json", "--on", given.accelerator]


def recipe(given: Given) -> list[str]:
    sets = [f"model.path={given.model}", f"rollouts.max_minutes={given.minutes:.2f}"]
    sets += ["evaluation.per_rung=1", "evaluation.heldout_per_rung=0"]
    if given.small:  # two steps on a CPU
        sets += ["rollouts.max_steps=2", "groups.size=4", "rollouts.groups_per_step=2", "rollouts.concurrency=16"]
        sets += ["rollouts.rungs=[3, 6]", "engine.cache_tokens=32768"]
    return [*ETUDE, "train", RECIPE, "--json", "--out", str(given.out / "recipe"), *as_sets(sets)]


def trl(given: Given) -> list[str]:
    sets = as_sets([f"model.path={given.model}", f"rollouts.max_minutes={given.minutes:.2f}"])
    side = ["benchmarks/vs_trl/trl_side.py", RECIPE, "--gpu", "--lr", "1e-6", "--threads", str(os.cpu_count())]
    where = ["--directory", str(given.out / "trl"), "--out", str(given.out / "trl.json")]
    return [sys.executable, *side, *where, *sets]


def read_run(given: Given) -> dict[str, Any]:
    """What a run wrote down of its training, by the names that TRL's side has for the same."""
    lines = rows(given.out / "recipe" / "metrics.jsonl")
    steps, played = ([line for line in lines if line["kind"] == kind] for kind in ("step", "rollout"))
    if not steps:
        raise ValueError(f"the run made no step, and {len(played)} rollouts")
    wall_s = steps[-1]["elapsed_s"]
    sampled = sum(turn[1] for line in played for turn in line["turns"])
    pauses = sorted(line["pause_ms"] for line in lines if line["kind"] == "delivery")
    return {
        "minutes": round(wall_s / 60, 2), "steps": len(steps), "rollouts": len(played),
        "tokens_per_s": round(sampled / wall_s, 1),
        "samples_per_s": round(sum(line["trained_rollouts"] for line in steps) / wall_s, 3),
        "scored_per_s": round(sum("failed" not in line for line in played) / wall_s, 3),
        "trained_tokens_per_s": round(sum(line["trained_tokens"] for line in steps) / wall_s, 1),
        "solve_rate": steps[-1]["solve_rate"],
        "max_abs_dlogp": max((line["max_abs_dlogp"] or 0.0 for line in steps), default=None),
        "swap_pause_ms": pauses[len(pauses) // 2] if pauses else None,
    }  # fmt: skip


def read_trl(given: Given) -> dict[str, Any]:
    told = json.loads((given.out / "trl.json").read_text())
    names = ("steps", "tokens_per_s", "samples_per_s", "scored_per_s", "informative_per_s", "solve_rate")
    return {"minutes": round(told["wall_s"] / 60, 2), **{name: told[name] for name in names}}


def as_sets(values: list[str]) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def without_trl(small: bool) -> str | None:
    if small:
        return "without a GPU there is no figure to compare; on a CPU benchmarks/quickstart_vs_trl.py does"
    if find_spec("trl") is None:
        return "TRL is not installed: pip install -c constraints.txt -e '.[bench]'"
    return None


def without_prime_rl(small: bool) -> str:
    del small
    return (
        "prime-rl is on no package index, so that nothing here could be tried with it; it takes its rollouts from an "
        "environment of verifiers (integrations/verifiers is ours), and no side of this comparison is written for it"
    )


ETUDE = [sys.executable, "-m", "etude.cli.main"]
AT_COPY = {f"{name}_share": ("at least", 0.9) for name in ("mxfp8_rows", "mxfp8_columns", "nvfp4_rows")}
PARTS = (
    Part(
        "parity", "Do trainer and engine agree, with each other and with a CPU? What does exactness cost a step?", 3,
        program(
            "parity", "--cost-shape recipes/shapes/Qwen3-0.6B",
            "--width 64 --layers 1 --vocabulary 128 --tokens 64 --sessions 3 --longest 8 --cost-tokens 32 --steps 1",
        ), aims={"max_abs_dlogp_triton": ("at most", 0.0), "grad_error_torch": ("at most", 1e-4)},
    ),
    Part(
        "batch_invariance", "What do products, norms and attention of one order cost beside torch's own?", 1,
        program("batch_invariance", "", "--width 128 --heads 2 --groups 1 --channels 32 --context 128"),
        aims={"ours_rows_that_differ": ("at most", 0.0)},
    ),
    Part(
        "low_precision", "Do quantise kernels run at copy bandwidth? Are grouped products faster than bf16?", 1,
        program("low_precision", "", "--rows 256 --experts 2 --width 128 --expert-width 128"), aims=AT_COPY,
    ),
    Part(
        "moe_decode", "How much faster is a decoding step's mixture, output by output?", 1,
        program("moe_decode", "", "--tokens 1 2 --experts 4 --top-k 2 --width 128 --expert-width 64"),
        aims={f"speedup_{tokens}": ("at least", 1.5) for tokens in (1, 8, 32)},
    ),
    Part(
        "deltas", "Is what changed between two versions found at copy bandwidth?", 1,
        program("deltas", "", "--elements 20000"), aims={"find_share": ("at least", 0.4)},
    ),
    Part("plan", "What would the one-gpu recipe hold, and how fast would it be by arithmetic?", 0.5, plan),
    Part(
        "recipe", "How fast does the one-gpu recipe train?", 11.5, recipe, read_run,
        variables={"ETUDE_KERNELS": "torch"},
    ),
    Part("trl", "How fast is TRL's GRPOTrainer, with the same model and tasks?", 11, trl, read_trl, without_trl),
    Part("prime_rl", "How fast is prime-rl?", 0, lambda given: [], left_out=without_prime_rl),
)  # fmt: skip

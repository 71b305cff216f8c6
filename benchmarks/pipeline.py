"""What it is worth that nothing waits: the same work synchronously and asynchronously, with tools that take long.

    python benchmarks/pipeline.py [--seconds 60] [--trl PYTHON] [--set KEY=VALUE ...] [--keep DIR]

Both sides are `etude train recipes/quickstart.toml` with the same tasks in the same order, the same model, sandboxes,
verifiers and optimizer, one after the other. Every tool call waits first, as a test suite or a build would: 0.1 s in
the middle and 3 s at the 99th percentile, lognormal. The synchronous side is `rollouts.schedule = "lockstep"` with lag
0: all groups of a step are sampled with its own weights, the slowest rollout is waited for, the trainer steps, the
engine takes the new version up, and only then is anything sampled again. The asynchronous side is the recipe itself.

    speedup        samples trained a second, asynchronous over synchronous, from the end of the first step on
    trainer_busy   share of the time in which a batch was there that the trainer was stepping
    engine_busy    share of the time in which a request was there that the engine was stepping
    sim_error      largest relative error of the simulator (`rollouts.plan`) in samples a second, over both sides; it
                   has each side's own rates, and decides by itself who waits for whom
    age_p99        versions between the one that sampled a token and the one trained on, asynchronous side
    lost           samples that were ordered and neither trained on nor dropped with a reason, over both sides
    trained_twice  samples that were in two steps
    trl_ratio      samples a second, asynchronous over TRL's GRPOTrainer with the same model, tasks, sandboxes, reward
                   and delays; null without --trl, the Python of an environment that has TRL (see quickstart_vs_trl.py)

The last line is one JSON object with these, the age histogram, and both sides' solve rates after as many samples.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from quickstart_vs_trl import HERE, RECIPE, SIDES, machine

from etude.config import load_recipe
from etude.rollouts.config import RunConfig
from etude.rollouts.plan.rates import read_rates
from etude.rollouts.plan.simulator import Simulation

SLACK_S = 900.0
"""Starting, evaluating a handful of tasks, and the last step, on a machine that does something else as well."""
COMMON = [
    "harness.delay=[0.1, 3.0]", "evaluation.per_rung=1", "evaluation.heldout_per_rung=0",
    "evaluation.real=false", "control.enabled=false", "rollouts.total_minutes=1000.0", "groups.straggler_s=",
]  # fmt: skip
SYNC = ['rollouts.schedule="lockstep"', "rollouts.lag=0", "rollouts.by_difficulty=false", "groups.window_share="]


def train(sets: list[str], directory: Path) -> dict[str, Any]:
    """One side, to its end; its figures."""
    command = [sys.executable, "-m", "etude.cli.main", "train", str(RECIPE), "--out", str(directory), "--json"]
    command += [part for each in sets for part in ("--set", each)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    config = load_recipe(RECIPE, RunConfig, sets)
    limit_s = 60 * config.rollouts.max_minutes + SLACK_S
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=limit_s)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return figures_of(config, directory)


def figures_of(config: RunConfig, directory: Path) -> dict[str, Any]:
    """What a side's lines say, and what the simulator says of it."""
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for text in (directory / "metrics.jsonl").read_text().splitlines():
        lines[json.loads(text)["kind"]].append(json.loads(text))
    steps, summary = lines["step"], json.loads((directory / "summary.json").read_text())
    if len(steps) < 3:
        sys.exit(f"{len(steps)} steps are too few to measure: give it more --seconds")
    ends = [line["elapsed_s"] + line["step_s"] for line in steps]
    wall_s = ends[-1] - ends[0]
    gauges = lines["engine"]
    spent = {name: gauges[-1][name] - gauges[0][name] for name in ("busy_s", "work_s", "elapsed_s")}
    samples = sum(line["trained_rollouts"] for line in steps[1:])
    forecast = Simulation(read_rates(directory), config, seed=None).run(len(steps) - 1)
    simulated = forecast.samples / forecast.wall_s
    return {
        "samples_per_s": samples / wall_s, "steps": len(steps), "wall_s": wall_s, "samples": samples,
        "trainer_busy": sum(line["step_s"] for line in steps) / sum(line["step_wall_s"] for line in steps),
        "trainer_busy_of_wall": sum(line["step_s"] for line in steps[1:]) / wall_s,
        "engine_busy": spent["busy_s"] / max(spent["work_s"], 1e-9),
        "engine_busy_of_wall": spent["busy_s"] / spent["elapsed_s"],
        "simulated_samples_per_s": simulated, "sim_error": abs(simulated * wall_s / samples - 1),
        "ages": {int(age): count for age, count in summary["counters"]["age_tokens"].items()},
        "lost": summary["lost"], "trained_twice": summary["trained_twice"],
        "solved_at": solved_at(steps), "dropped": summary["counters"]["groups_dropped"],
    }  # fmt: skip


def solved_at(steps: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """(samples trained on so far, share solved of the last 128 rollouts), one a step."""
    trained, curve = 0, []
    for line in steps:
        trained += line["trained_rollouts"]
        curve.append((trained, round(line["solve_rate"], 4)))
    return curve


def trl_samples_per_s(python: str, seconds: float, sets: list[str], directory: Path) -> float:
    """TRL's side of quickstart_vs_trl.py, with the same delays."""
    out = directory / "trl.json"
    command = [
        python,
        str(SIDES / "trl_side.py"),
        str(RECIPE),
        "--directory",
        str(directory / "trl"),
        "--out",
        str(out),
    ]
    command += ["--lr", "5e-4", "--threads", str(os.cpu_count()), "--set", f"rollouts.max_minutes={seconds / 60}"]
    command += [part for each in sets for part in ("--set", each)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(HERE.parent)}
    limit_s = seconds + SLACK_S
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, timeout=limit_s
    )
    if done.returncode:
        sys.exit(f"TRL's side ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return float(json.loads(out.read_text())["samples_per_s"])


def percentile(ages: dict[int, int], share: float) -> int:
    """The age that this share of tokens does not exceed."""
    total, seen = sum(ages.values()), 0
    for age, count in sorted(ages.items()):
        seen += count
        if seen >= share * total:
            return age
    return 0


def rate_at(curve: list[tuple[int, float]], samples: int) -> float:
    """The solve rate when so many samples had been trained on."""
    return max(((trained, rate) for trained, rate in curve if trained <= samples), default=curve[0])[1]


def summarise(sync: dict[str, Any], free: dict[str, Any], trl: float | None) -> dict[str, Any]:
    """The promised keys, then both sides."""
    equal = min(sync["solved_at"][-1][0], free["solved_at"][-1][0])
    return {
        "speedup": round(free["samples_per_s"] / sync["samples_per_s"], 3),
        "trainer_busy": round(free["trainer_busy"], 4),
        "engine_busy": round(free["engine_busy"], 4),
        "sim_error": round(max(sync["sim_error"], free["sim_error"]), 4),
        "age_p99": percentile(free["ages"], 0.99),
        "lost": sync["lost"] + free["lost"],
        "trained_twice": sync["trained_twice"] + free["trained_twice"],
        "trl_ratio": None if trl is None else round(free["samples_per_s"] / trl, 3),
        "trl_samples_per_s": trl,
        "ages": dict(sorted(Counter(free["ages"]).items())),
        "equal_samples": equal,
        "solve_rate_at_equal_samples": {
            "sync": rate_at(sync["solved_at"], equal), "async": rate_at(free["solved_at"], equal),
        },
        "sync": sync, "async": free,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, asynchronous side")
    parser.add_argument("--sync-seconds", type=float, help="synchronous side; as many, if not given")
    parser.add_argument("--trl", metavar="PYTHON", help="also TRL's side, with this interpreter")
    parser.add_argument("--trl-seconds", type=float, help="TRL's side; as many, if not given")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of both sides' recipe")
    parser.add_argument("--keep", type=Path, help="leave the run directories here")
    options = parser.parse_args()
    before = machine()
    with contextlib.ExitStack() as stack:
        made = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made.mkdir(parents=True, exist_ok=True)
        sets = [*COMMON, *options.set]

        def of(seconds: float | None) -> str:
            return f"rollouts.max_minutes={(seconds or options.seconds) / 60}"

        sync = train([*sets, *SYNC, of(options.sync_seconds)], made / "sync")
        free = train([*sets, of(options.seconds)], made / "async")
        trl = None
        if options.trl:
            trl = trl_samples_per_s(options.trl, options.trl_seconds or options.seconds, sets, made)
    for name, side in (("sync", sync), ("async", free)):
        brief = {key: value for key, value in side.items() if isinstance(value, int | float)}
        print(f"{name:5} " + "  ".join(f"{key} {value:.4g}" for key, value in brief.items()))
    print(json.dumps({**summarise(sync, free, trl), "seconds": options.seconds, "machine": before}))


if __name__ == "__main__":
    main()

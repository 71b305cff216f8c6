"""Etude's loop against TRL's GRPOTrainer: the same model, tasks, harness, sandboxes, reward and machine, without a GPU.

    python benchmarks/quickstart_vs_trl.py [--model DIR] [--minutes 5] [--only etude|trl|both]

Both sides train for the same wall budget, one after the other, each in a process of its own: the recipe's 4 groups of 8
rollouts a step, the quickstart's training tasks from index 0, temperature 1, multi-turn sessions through the same
harness with a sandbox each, judged in a fresh one, under the same limits. Loading is outside the clock; a side ends
with the first optimizer step past the budget. How TRL is driven, and why so, is at the head of vs_trl/trl_side.py.

    samples_per_s      scored rollouts that finished optimizer steps consumed. Etude drops groups whose rewards are all
                       equal before training, so its samples all carry gradient; TRL trains on them all the same, so
                       they count.
    informative_per_s  the same, without groups of equal reward on either side
    scored_per_s       every rollout that ended with a verdict, trained on or not
    solve_rate         over the last 128 rollouts; each is of a task not trained on before
    seconds_to         when the solve rate first reached the target: the lower of both sides' last solve rates, null
                       unless both ended above where they started

The last line is one JSON object. Learning rates are each side's own: the recipe's for Etude, --trl-lr for TRL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDES = HERE / "vs_trl"
RECIPE = HERE.parent / "recipes" / "quickstart.toml"
PACKAGES = ("torch", "transformers", "trl", "ray")
SLACK_S = 900.0
"""Loading, and the last step."""

sys.path.insert(0, str(SIDES))
from measure import seconds_to  # noqa: E402  # beside the two sides, which run as scripts


def run_side(side: str, options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run one side to its end; its own lines go to stderr."""
    out = directory / f"{side}.json"
    command = [sys.executable, str(SIDES / f"{side}_side.py"), str(RECIPE), "--directory", str(directory / side)]
    command += ["--out", str(out), "--set", f"model.path={json.dumps(str(options.model.resolve()))}"]
    command += ["--set", f"rollouts.max_minutes={options.minutes}"]
    command += ["--lr", str(options.trl_lr), "--threads", str(options.trl_threads)] if side == "trl" else []
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, stdout=sys.stderr, env=environment, timeout=60 * options.minutes + SLACK_S)
    if done.returncode or not out.exists():
        sys.exit(f"the {side} side ended with status {done.returncode}; what it said is above")
    return json.loads(out.read_text())


def summarise(sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Both sides' figures under their names, their ratio, and the time each took to the same solve rate."""
    figures = {f"{side}_{name}": value for side, report in sides.items() for name, value in report.items()}
    both = {"ratio": None, "informative_ratio": None, "target": None, "etude_seconds_to": None, "trl_seconds_to": None}
    if len(sides) == 2:
        etude, trl = sides["etude"], sides["trl"]
        both["ratio"] = round(etude["samples_per_s"] / trl["samples_per_s"], 3)
        if trl["informative_per_s"]:
            both["informative_ratio"] = round(etude["informative_per_s"] / trl["informative_per_s"], 3)
        if all(side["curve"] and side["solve_rate"] > side["start_solve_rate"] for side in (etude, trl)):
            both["target"] = min(etude["solve_rate"], trl["solve_rate"])
            both["etude_seconds_to"] = seconds_to(etude["curve"], both["target"])
            both["trl_seconds_to"] = seconds_to(trl["curve"], both["target"])
    return {**both, **figures}


def machine() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0],
        "python": platform.python_version(), **{name: _version(name) for name in PACKAGES},
    }  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=HERE.parent / "models" / "etude-tiny")
    parser.add_argument("--minutes", type=float, default=5.0, help="wall budget of each side")
    parser.add_argument("--only", choices=("etude", "trl", "both"), default="both")
    parser.add_argument("--trl-lr", type=float, default=5e-4, help="AdamW's learning rate on TRL's side")
    parser.add_argument("--trl-threads", type=int, default=os.cpu_count(), help="torch threads on TRL's side")
    options = parser.parse_args()
    if not (options.model / "config.json").exists():
        sys.exit(f"{options.model}: no model there; name one with --model")
    sides = ("etude", "trl") if options.only == "both" else (options.only,)
    if "trl" in sides and _version("trl") is None:
        sys.exit("TRL is not installed: run this with `make bench`, or `pip install -c constraints.txt -e '.[bench]'`")
    before = machine()
    with tempfile.TemporaryDirectory() as directory:
        reports = {side: run_side(side, options, Path(directory)) for side in sides}
    for side, report in reports.items():
        brief = {name: value for name, value in report.items() if name != "curve"}
        print(f"{side:5} " + "  ".join(f"{name} {value}" for name, value in brief.items()))
    print(
        json.dumps({**summarise(reports), "minutes": options.minutes, "model": options.model.name, "machine": before})
    )


if __name__ == "__main__":
    main()

"""Does a base that finds good sessions likelier become a better policy? The published claim, tried at small size.

    python benchmarks/nll.py [--tokens 6 12 24] [--bases DIR...] [--seeds 0 1 2] [--steps 30] [--out runs/nll]
    python benchmarks/nll.py --report

Bases are those of --bases (by default the shipped one) and, for each of --tokens (millions), one that is made as
`recipes/base.toml` makes the shipped one, with all its stages shortened alike. Of each base is measured: the negative
log-likelihood (nats a token) of sessions that no training has, of an expert that knows no more than a player; what it
solves of development tasks; and what it solves of them after so many steps of the quickstart's reinforcement learning,
at every seed (steps, not minutes: what else a machine does must not count). Two lines are fitted by least squares to
the bases' means over seeds: of what is solved after, and of what was gained, as a base that solves more before is
likelier to solve more after. Their intervals (95%) are Student's; four bases say little, and theirs are wide.

What is done is in OUT and not done again. The last line is one JSON object; OUT/nll.svg is the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms.records import development_tasks
from arms.training import QUIET, ROOT, late_steps, run
from playing import RECIPE, recipe, solved_tasks

from etude.bench.html import figure
from etude.config import load_recipe
from etude.durable import write_whole
from etude.environments.backends import open_backend
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint
from etude.tasks.expert import CLEAN
from etude.trainer.base_model import BaseConfig
from etude.trainer.demonstrations import record, recorded
from etude.trainer.documents import Document, read_documents, write_documents
from etude.trainer.supervised import nll

FIRST = 30_000
"""Number of the first development task: no other benchmark, and no evaluation of a run, has these."""
BASE = ROOT / "recipes" / "base.toml"
SHIPPED, TOKENIZER = ROOT / "models" / "etude-tiny", "tokenizer.json"
MADE_ONCE = (TOKENIZER, "sessions.npz")
"""By the first base; what others are trained on, too."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447)
"""The 97.5% quantile by degrees of freedom, from 1 on."""


def made(out: Path, millions: float) -> Path:
    """A base of so many tokens."""
    directory = out / "bases" / f"{millions:g}M"
    if not (directory / "model").exists():
        directory.mkdir(parents=True, exist_ok=True)
        for other in sorted((out / "bases").iterdir()):
            for name in MADE_ONCE:
                if (other / name).exists() and not (directory / name).exists():
                    shutil.copy(other / name, directory / name)
        stages = load_recipe(BASE, BaseConfig, []).midtraining.stages
        share = 1e6 * millions / sum(stage.tokens for stage in stages)
        shorter = [{"tokens": round(share * stage.tokens), "mixture": dict(stage.mixture)} for stage in stages]
        written = ", ".join(
            f"{{tokens = {each['tokens']}, mixture = {{{_pairs(each['mixture'])}}}}}" for each in shorter
        )
        words = ["pretrain", str(BASE), "--out", str(directory), "--set", f"midtraining.stages=[{written}]", "--json"]
        subprocess.run([sys.executable, "-m", "etude.cli.main", *words], cwd=ROOT, check=True, stdout=sys.stderr)
    return directory / "model"


def _pairs(mixture: dict[str, float]) -> str:
    return ", ".join(f"{name} = {share}" for name, share in mixture.items())


def held_out(out: Path, model: Path, per_rung: int) -> list[Document]:
    """Sessions of the expert at development tasks."""
    path = out / "held_out.npz"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_documents(path, asyncio.run(_recorded(model, per_rung)))
    return list(read_documents(path))


async def _recorded(model: Path, per_rung: int) -> list[Document]:
    backend = open_backend()
    tasks = [each for each in development_tasks(FIRST, per_rung, real=False) if each.split == "eval"]
    try:
        played = record(tasks, backend, open_chat(model), CLEAN, recipe().harness, seed=0)
        return await recorded(played, len(tasks))
    finally:
        await backend.close()


def before(name: str, base: Path, documents: Sequence[Document], per_rung: int) -> dict[str, Any]:
    """What is known of a base: nats a token that the expert says, and what it solves."""
    if (base / TOKENIZER).read_bytes() != (SHIPPED / TOKENIZER).read_bytes():
        raise SystemExit(f"{base}: its tokens are not those of {SHIPPED}, so nats a token are not alike; leave it out")
    total, count = nll(load_checkpoint(base)[0], documents, 4096)
    return {"name": name, "nll": total / count, "solved": solve_rate(base, per_rung)}


def solve_rate(model: Path, per_rung: int) -> float:
    torch.set_num_threads(1)
    return float(np.mean([*solved_tasks(model, recipe(), development_tasks(FIRST, per_rung, False), "nll").values()]))


def after(base: Path, seed: int, steps: int, directory: Path, per_rung: int) -> dict[str, Any]:
    """What reinforcement learning makes of a base."""
    sets = [
        *QUIET,
        f"seed={seed}",
        f"rollouts.max_steps={steps}",
        "rollouts.max_minutes=600",
        f"model.path={json.dumps(str(base))}",
    ]
    training = run(RECIPE, directory, sets)
    reward = float(np.mean([line["reward"] for line in late_steps(directory)]))
    solved = solve_rate(directory / "model", per_rung)
    return {"solved": solved, "reward": reward, "steps": training["steps"], "cpu_s": training["cpu_s"]}


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in a file, made now unless it is there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(make()) + "\n").encode())
    return json.loads(path.read_text())


def fitted(x: Sequence[float], y: Sequence[float]) -> dict[str, Any] | None:
    """The line through (NLL, share) of three bases or more, with the interval of its slope."""
    freedom = len(x) - 2
    if freedom < 1 or len(set(x)) < 2:
        return None
    by, at_zero = map(float, np.polyfit(x, y, 1))
    rest = np.asarray(y) - by * np.asarray(x) - at_zero
    error = float(np.sqrt((rest @ rest) / freedom / ((x - np.mean(x)) ** 2).sum()))
    wide = error * STUDENT[min(freedom, len(STUDENT)) - 1]
    return {"slope": by, "at_zero": at_zero, "interval": [by - wide, by + wide], "bases": len(x)}


def report(out: Path) -> dict[str, Any]:
    bases = [json.loads(path.read_text()) for path in sorted(out.glob("base-*.json"))]
    for base in bases:
        paths = sorted(out.glob(f"after-{base['name']}-*.json"))
        base["after"] = [json.loads(path.read_text()) for path in paths]
    whole = [each for each in bases if each["after"]]
    points = [(each["nll"], [one["solved"] for one in each["after"]]) for each in whole]
    x, means = [at for at, _ in points], [float(np.mean(rates)) for _, rates in points]
    line = fitted(x, means)
    gain = fitted(x, [mean - each["solved"] for mean, each in zip(means, whole, strict=True)])
    if points:
        draw(points, line, out / "nll.svg")
    return {"bases": bases, "line": line, "gain": gain}


def draw(points: Sequence[tuple[float, Sequence[float]]], line: dict[str, Any] | None, path: Path) -> None:
    drawn = figure(5, 3.2)
    axes = drawn.subplots()
    for at, rates in points:
        axes.plot([at] * len(rates), [100 * each for each in rates], "o", color="#2f6fed", markersize=4)
    if line:
        ends = np.array([min(at for at, _ in points), max(at for at, _ in points)])
        axes.plot(ends, 100 * (line["at_zero"] + line["slope"] * ends), color="#555555", linewidth=1)
    axes.set(xlabel="nats a token of held-out sessions, before", ylabel="solved after reinforcement learning, %")
    axes.spines[["top", "right"]].set_visible(False)
    drawn.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/nll"))
    parser.add_argument("--tokens", type=float, nargs="*", default=[6, 12, 24], help="bases to make, in millions")
    parser.add_argument("--bases", type=Path, nargs="*", default=[SHIPPED])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30, help="of reinforcement learning")
    parser.add_argument("--per-rung", type=int, default=24, help="development tasks of each rung and split")
    parser.add_argument("--report", action="store_true", help="figures of what is there; train nothing")
    options = parser.parse_args()
    out = options.out.resolve()
    if not options.report:
        bases = {path.resolve().name: path.resolve() for path in options.bases}
        bases |= {f"{millions:g}M": made(out, millions) for millions in options.tokens}
        documents = held_out(out, SHIPPED, options.per_rung)
        for name, base in bases.items():
            found = kept(out / f"base-{name}.json", partial(before, name, base, documents, options.per_rung))
            print(f"{name}: {found['nll']:.4f} nats a token, {100 * found['solved']:.1f}% solved", flush=True)
            for seed in options.seeds:
                trained = partial(after, base, seed, options.steps, out / "runs" / f"{name}-{seed}", options.per_rung)
                told = kept(out / f"after-{name}-{seed}.json", trained)
                print(
                    f"{name}, seed {seed}: {100 * told['solved']:.1f}% solved after {told['steps']} steps", flush=True
                )
    print(json.dumps(report(out)))


if __name__ == "__main__":
    main()

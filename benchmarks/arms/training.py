"""The arms: what each trains, from which checkpoint, for how much CPU time.

Owns `Plan` and `train`. What an arm has trained stays in OUT/runs/ARM-SEED (the model, checkpoints on the way, and
trained.json), and is not trained again. CPU seconds are of all processes: of a run of reinforcement learning those that
it measures itself, between the start and the end of training; of the other arms, which train in this process, its own
and those of its sandboxes. Evaluates nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from playing import RECIPE, recipe

from arms.rejection import RejectionConfig, Round, rejection_tuned
from etude.config import overridden
from etude.engine.adapted import merged
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.state import load_bits
from etude.records import Version
from etude.rollouts.config import RunConfig
from etude.rollouts.control import Read, cpu_spent, fine_tuned_control
from etude.rollouts.lines import rows
from etude.trainer.config import FinetuneConfig
from etude.trainer.hindsight import confirmed
from etude.weights.opening import open_store
from etude.weights.subscriber import Subscriber

if TYPE_CHECKING:
    from etude.models.decoder import Decoder

ROOT = RECIPE.parent.parent
ARMS = ("rl", "sft", "sft_long", "sft_rl", "rft", "sft_masked")
FRACTIONS = (0.25, 0.5, 0.75)
"""Of an arm's time, at which a checkpoint is kept for its curve."""
QUIET = (
    "evaluation.per_rung=1", "evaluation.heldout_per_rung=0", "evaluation.real=false", "control.enabled=false",
    "rollouts.total_minutes=", "publisher.keep=1000000", "evaluation.beside=",
)  # fmt: skip
"""A run that trains, evaluates next to nothing, and keeps every version."""
FROM_SFT = ("trainer.optimizer.lr=0.01", "trainer.gradient_clip=1.1")
"""What `sft_rl` has beside the recipe. From `sft` with the base's 0.02 two runs (development tasks, seed 7, 150 of the
upper rungs) solved 24 and 22% where `sft` itself solved 28; one run with 0.01 solved 29, one with 0.005 23. The clip:
where a policy that is sure of itself babbles once, that session has 98% of a step's gradient. Muon gives the step its
length anyway, but its momentum remembers such a gradient for ten steps (docs/results.md).
"""


@dataclass(frozen=True)
class Checkpoint:
    """A model and what it took."""

    model: Path
    cpu_s: float
    samples: int


@dataclass(frozen=True)
class Trained:
    """An arm is done: its last checkpoint, those on the way, and what else is known."""

    last: Checkpoint
    way: tuple[Checkpoint, ...]
    notes: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """What is the same for all arms and seeds."""

    out: Path
    base: Path
    minutes: float
    """Of reinforcement learning."""
    cpu_seconds: float | None = None
    """T of the other arms; None: what `rl` took at the same seed."""
    overrides: tuple[str, ...] = ()
    """PREFIX.KEY=VALUE: of the recipe of `all` arms, of `rl` or of `sft_rl`, or of fine-tuning (`sft`), or `rft`."""

    def directory(self, arm: str, seed: int) -> Path:
        return self.out / "runs" / f"{arm}-{seed}"

    def of(self, prefix: str) -> list[str]:
        return [each.removeprefix(f"{prefix}.") for each in self.overrides if each.startswith(f"{prefix}.")]

    def config(self, seed: int) -> RunConfig:
        return recipe([f"seed={seed}", f"model.path={json.dumps(str(self.base))}", *self.of("all")])

    @property
    def finetuning(self) -> FinetuneConfig:
        return overridden(FinetuneConfig(), self.of("sft"))

    @property
    def rejection(self) -> RejectionConfig:
        return overridden(RejectionConfig(), self.of("rft"))


def train(plan: Plan, arm: str, seed: int) -> Trained:
    """The arm at that seed, trained now unless it is there already."""
    directory = plan.directory(arm, seed)
    if (done := read(directory)) is None:
        done = _TRAINING[arm](plan, seed, directory)
        stored = {"last": _plain(done.last, directory), "way": [_plain(each, directory) for each in done.way]}
        (directory / "trained.json").write_text(json.dumps(stored | {"notes": done.notes}) + "\n")
    return done


def read(directory: Path) -> Trained | None:
    """What is in an arm's directory; None while it is not trained."""
    path = directory / "trained.json"
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    made = [
        replace(Checkpoint(**each), model=(directory / each["model"]).resolve())
        for each in (stored["last"], *stored["way"])
    ]
    return Trained(made[0], tuple(made[1:]), stored["notes"])


def _plain(made: Checkpoint, directory: Path) -> dict[str, Any]:
    return {"model": os.path.relpath(made.model, directory), "cpu_s": made.cpu_s, "samples": made.samples}


def seconds(plan: Plan, seed: int) -> float:
    """T at that seed."""
    if plan.cpu_seconds is not None:
        return plan.cpu_seconds
    done = read(plan.directory("rl", seed))
    if done is None:
        raise SystemExit(f"seed {seed}: nobody knows how much CPU time rl takes; train it first, or say --cpu-seconds")
    return done.last.cpu_s


# --- reinforcement learning -------------------------------------------------------------------------------------------


def _rl(plan: Plan, seed: int, directory: Path) -> Trained:
    return _reinforced(plan, seed, directory, plan.base, plan.minutes, plan.of("rl"))


def _sft_rl(plan: Plan, seed: int, directory: Path) -> Trained:
    """Both halves count, and are on its curve."""
    first = train(plan, "sft", seed)
    changes = [*FROM_SFT, *plan.of("rl"), *plan.of("sft_rl")]
    then = _reinforced(plan, seed, directory, first.last.model, plan.minutes / 2, changes)

    def after(made: Checkpoint) -> Checkpoint:
        return replace(made, cpu_s=made.cpu_s + first.last.cpu_s, samples=made.samples + first.last.samples)

    way = (*first.way, first.last, *map(after, then.way))
    return Trained(after(then.last), way, then.notes | {"sft_cpu_s": first.last.cpu_s})


def _reinforced(plan: Plan, seed: int, directory: Path, model: Path, minutes: float, changes: Iterable[str]) -> Trained:
    sets = [f"seed={seed}", f"model.path={json.dumps(str(model))}", f"rollouts.max_minutes={minutes}", *QUIET]
    training = run(RECIPE, directory, [*sets, *plan.of("all"), *changes])
    last = Checkpoint(directory / "model", training["cpu_s"], training["rollouts"])
    notes = {name: training[name] for name in ("steps", "wall_s", "samples_per_s", "trainer_busy", "engine_busy")}
    return Trained(last, tuple(_versions(plan.config(seed), directory, training)), notes)


def run(recipe: Path, directory: Path, sets: Iterable[str]) -> dict[str, Any]:
    """A run of a recipe with these overrides, or the rest of it; returns its training.json."""
    overrides = [part for each in sets for part in ("--set", each)]
    resume = ["--resume"] if (directory / "recipe.json").exists() else []
    command = [sys.executable, "-m", "etude.cli.main", "train", str(recipe), "--out", str(directory), "--json"]
    if subprocess.run([*command, *overrides, *resume], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit(f"{directory}: the run failed; what it said is above, and this command goes on with it")
    return json.loads((directory / "training.json").read_text())


def commit() -> str:
    """Of this tree, for records."""
    command = ["git", "describe", "--always", "--dirty"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def late_steps(directory: Path) -> list[dict[str, Any]]:
    """What a run's metrics say of the last quarter of its steps."""
    steps = [line for line in rows(directory / "metrics.jsonl") if line["kind"] == "step"]
    return steps[-max(1, len(steps) // 4) :]


def _versions(config: RunConfig, directory: Path, training: dict[str, Any]) -> Iterable[Checkpoint]:
    """What the weight store has of the run's fractions."""
    played, steps = 0, []
    for line in rows(directory / "metrics.jsonl"):
        played += line["kind"] == "rollout"
        if line["kind"] == "step":
            steps.append((line["elapsed_s"] / training["wall_s"], line["version"], played))
    subscriber = Subscriber(open_store(config.store_of(directory)))
    for fraction in FRACTIONS:
        before = [step for step in steps if step[0] <= fraction]
        if before:
            at, version, samples = before[-1]
            bits, _ = subscriber.fetch(None, None, Version(version))
            decoder, tokenizer = load_checkpoint(config.model.path)
            load_bits(decoder, merged(bits))
            save_checkpoint(decoder, directory / f"way-{fraction}", tokenizer)
            yield Checkpoint(directory / f"way-{fraction}", at * training["cpu_s"], samples)


# --- demonstrations ---------------------------------------------------------------------------------------------------


def _demonstrated(plan: Plan, seed: int, directory: Path, share: float, read: Read | None = None) -> Trained:
    """Fine-tuned on the fair expert's sessions for that share of T. Checkpoints on the way are of one schedule: their
    learning rate has not come down yet.
    """
    config, budget, started = plan.config(seed), share * seconds(plan, seed), cpu_spent()
    kept: list[tuple[float, int, dict[str, torch.Tensor]]] = []
    left = list(FRACTIONS)

    def on_step(decoder: Decoder, line: dict[str, float]) -> None:
        spent = cpu_spent() - started
        if left and spent >= left[0] * budget:
            while left and spent >= left[0] * budget:
                left.pop(0)
            weights = {name: each.detach().clone() for name, each in decoder.named_parameters()}
            kept.append((spent, int(line["documents"]), weights))

    _, metrics = fine_tuned_control(config, budget, directory / "model", plan.finetuning, read, on_step)
    last = Checkpoint(directory / "model", cpu_spent() - started, int(metrics["documents"]))
    way = []
    for number, (spent, samples, weights) in enumerate(kept):
        decoder, tokenizer = load_checkpoint(config.model.path)
        for name, each in decoder.named_parameters():
            each.data.copy_(weights[name])
        save_checkpoint(decoder, directory / f"way-{number}", tokenizer)
        way.append(Checkpoint(directory / f"way-{number}", spent, samples))
    return Trained(last, tuple(way), metrics)


# --- rejection sampling -----------------------------------------------------------------------------------------------


def _rft(plan: Plan, seed: int, directory: Path) -> Trained:
    rounds: list[Round] = []
    budget = seconds(plan, seed)
    rejection_tuned(plan.config(seed), budget, directory, plan.rejection, plan.finetuning, rounds.append)
    *way, last = (Checkpoint(done.model, done.cpu_s, done.samples) for done in rounds)
    return Trained(last, tuple(way), {"kept": rounds[-1].kept, "rounds": len(rounds)})


_TRAINING: dict[str, Callable[[Plan, int, Path], Trained]] = {
    "rl": _rl,
    "sft": partial(_demonstrated, share=0.5),
    "sft_long": partial(_demonstrated, share=1.0),
    "sft_rl": _sft_rl,
    "rft": _rft,
    "sft_masked": partial(_demonstrated, share=1.0, read=confirmed),
}

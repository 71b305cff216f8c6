"""What both sides of the comparison share: the tasks, one set of counts, one curve, one clock.

Owns `training_task`, and `Measured`, which a side fills while it runs and whose `report` is compared with the other's.
Knows neither side.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from etude.records import InfraFailed, Task, Trajectory, reward_of, solved
from etude.rollouts.config import RunConfig
from etude.rollouts.sample import Sample
from etude.tasks.ladder import ladder_task

BLOCK = 64
"""Rollouts a point of the curve."""
WINDOW = 2
"""Points that a solve rate is taken over. Every training task is seen once, so this is a rate on fresh tasks."""


def training_task(config: RunConfig, index: int) -> Task:
    """The quickstart's training tasks, rungs in turns; both sides draw them by index from 0."""
    rungs = config.rollouts.rungs
    return ladder_task(rungs[index % len(rungs)], "train", config.seed * 1_000_000 + index)


def cpu_seconds() -> float:
    """CPU seconds so far of this process and of all below it, living and reaped."""
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended while we looked; its parent has its times
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Measured:
    """Counts of one side. `rolled_out` takes every rollout that ended, `trained` the groups of a finished step."""

    def __init__(self) -> None:
        self.started, self.cpu_before = time.monotonic(), cpu_seconds()
        self.scored = self.infra_failed = self.samples = self.informative = self.steps = 0
        self.usage = dict.fromkeys(("turns", "tool_calls", "parallel_turns", "sampled_tokens", "observed_tokens"), 0)
        self.blocks: list[tuple[float, float]] = []
        self._open: list[bool] = []

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def rolled_out(self, trajectory: Trajectory | Sample) -> None:
        if isinstance(trajectory.outcome, InfraFailed):
            self.infra_failed += 1
            return
        self.scored += 1
        for name in self.usage:
            self.usage[name] += trajectory.usage.get(name, 0)
        self._open.append(solved(trajectory.outcome))
        if len(self._open) == BLOCK:
            self.blocks.append((self.elapsed(), sum(self._open) / BLOCK))
            self._open = []

    def trained(self, groups: Sequence[Sequence[Trajectory | Sample]]) -> None:
        """A group whose rewards are all equal counts as a sample, for it was paid for, and not as informative."""
        self.steps += 1
        for members in groups:
            rewards = [reward for member in members if (reward := reward_of(member.outcome)) is not None]
            self.samples += len(rewards)
            self.informative += len(rewards) if len(set(rewards)) > 1 else 0

    def curve(self) -> list[tuple[float, float]]:
        """(seconds, solve rate over the last WINDOW blocks), one point a block."""
        recent = [self.blocks[max(0, end - WINDOW) : end] for end in range(1, len(self.blocks) + 1)]
        return [(round(points[-1][0], 1), round(sum(rate for _, rate in points) / len(points), 4)) for points in recent]

    def report(self) -> dict[str, Any]:
        """Rates are over the wall time from the first dispatch to now, the end of the last optimizer step."""
        wall, cpu = self.elapsed(), cpu_seconds() - self.cpu_before
        curve = self.curve()
        return {
            "wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "steps": self.steps, "samples": self.samples,
            "samples_per_s": round(self.samples / wall, 3),
            "scored_per_s": round(self.scored / wall, 3),
            "informative_per_s": round(self.informative / wall, 3),
            "samples_per_cpu_s": round(self.samples / cpu, 3),
            "tokens_per_s": round(self.usage["sampled_tokens"] / wall, 1),
            "turns": round(self.usage["turns"] / max(1, self.scored), 3),
            "tool_calls": round(self.usage["tool_calls"] / max(1, self.scored), 3),
            "sampled_tokens": round(self.usage["sampled_tokens"] / max(1, self.scored), 1),
            "observed_tokens": round(self.usage["observed_tokens"] / max(1, self.scored), 1),
            "infra_failed": self.infra_failed,
            "start_solve_rate": curve[0][1] if curve else None,
            "solve_rate": curve[-1][1] if curve else None,
            "curve": curve,
        }  # fmt: skip

    def write(self, path: Path, **facts: Any) -> None:
        path.write_text(json.dumps({**self.report(), **facts}) + "\n")


def seconds_to(curve: list[tuple[float, float]], target: float) -> float | None:
    """When the curve first reached the target; None if it did not."""
    return next((seconds for seconds, rate in curve if rate >= target), None)

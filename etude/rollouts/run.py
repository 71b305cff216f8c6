"""A run from its recipe to its report: evaluate, train, evaluate, control, summarise.

Owns the order of phases and the run directory. Each phase leaves a file there and is not repeated by `resume`; training
goes on from its last checkpoint. Talks to: cluster, controller, evaluate, stats, view and report.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from etude.errors import ConfigError
from etude.records import Task, Version
from etude.rollouts.actors import ControlActor
from etude.rollouts.cluster import Cluster, cpu_by_part, within
from etude.rollouts.config import RunConfig
from etude.rollouts.controller import Controller, TaskStream
from etude.rollouts.evaluate import Judged, as_json, evaluate, evaluation_set, from_json
from etude.rollouts.loop import train
from etude.rollouts.stats import RunStats
from etude.tasks.ladder import ladder_task

KEPT = ("samples_per_s", "trainer_busy", "engine_busy", "cpu_by_part", "steps", "rollouts")
CONTROL_VERSION = Version(1_000_000)
FEATURES = [
    "tool_calls", "parallel_turns", "session_cache_tokens", "prefix_hit_tokens", "routes_replayed", "deltas_published",
    "delta_bytes_published", "deltas_applied", "roots_verified", "in_flight_swaps",
]  # fmt: skip


class Run:
    """One run directory and the phases that fill it."""

    def __init__(self, config: RunConfig, directory: Path, resume: bool, quiet: bool = False) -> None:
        self.config, self.directory, self.quiet = config, directory, quiet
        _claim(directory, config, resume)
        self.stopping = False
        self.controller: Controller | None = None

    async def execute(self) -> dict[str, Any]:
        """All phases; returns the summary that is also written to summary.json."""
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        self.cluster = await Cluster.start(self.config, self.directory)
        try:
            return await self._phases(started)
        finally:
            await self.cluster.close()

    def stop(self) -> None:
        """Finish the step in progress and end; what is saved can be resumed."""
        self.stopping = True
        if self.controller is not None:
            self.controller.stopping = True
            self.controller.changed.set()

    async def _phases(self, started: float) -> dict[str, Any]:
        tasks = evaluation_set(self.config.evaluation)
        state = await within(self.cluster.trainer.resume.remote(), 120, "the trainer to load its checkpoint")
        published = await within(self.cluster.trainer.publish.remote(), 120, "the trainer to publish its version")
        for engine in self.cluster.engines:
            await within(engine.load.remote(Version(published["version"])), 120, "an engine to load its weights")
        self.stats = RunStats(self.directory / "metrics.jsonl", (state or {}).get("stats"))
        base = await self._evaluated("base", tasks)
        training = await self._trained(state, published)
        after = await self._evaluated("after", tasks)
        control = await self._controlled(tasks, training["cpu_s"])
        summary = await self._summary(base, after, control, training, time.monotonic() - started)
        _write(self.directory / "summary.json", summary)
        return summary

    async def _evaluated(self, label: str, tasks: list[Task]) -> list[Judged]:
        path = self.directory / f"evaluation-{label}.json"
        if path.exists():
            return from_json(json.loads(path.read_text()))
        started = time.monotonic()
        results, _ = await evaluate(self.cluster, tasks, self.config.evaluation, label)
        self.stats.write("evaluation", {"label": label, "seconds": time.monotonic() - started})
        _write(path, as_json(results))
        return results

    async def _trained(self, state: dict[str, Any] | None, published: dict[str, Any]) -> dict[str, Any]:
        path = self.directory / "training.json"
        if path.exists():
            return json.loads(path.read_text())
        state = state or {}
        stream = TaskStream(self._task, state.get("next_task", 0), state.get("pending"))
        self.controller = Controller(self.config, self.cluster, stream, self.stats, state.get("elapsed_s", 0.0))
        before, wall = cpu_by_part(), time.monotonic()
        engine_before = (await self.cluster.stats())["engine"]
        await self.controller.start(Version(published["version"]))
        try:
            await train(self.controller)
        finally:
            await self.controller.stop()
        after, wall = cpu_by_part(), time.monotonic() - wall
        engine = (await self.cluster.stats())["engine"]
        split = {part: after[part] - before[part] for part in after}
        training = {
            "wall_s": wall, "cpu_s": sum(split.values()), "cpu_by_part": split, "steps": self.stats.steps,
            "rollouts": self.stats.counters["rollouts"], "version": int(self.controller.version),
            "engine_busy": (engine["busy_s"] - engine_before["busy_s"]) / wall,
            "trainer_busy": self.controller.trainer_busy_s / wall,
            "samples_per_s": self.stats.counters["rollouts"] / wall,
        }  # fmt: skip
        _write(path, training)
        return training

    def _task(self, index: int) -> Task:
        rungs = self.config.rollouts.rungs
        return ladder_task(rungs[index % len(rungs)], "train", self.config.seed * 1_000_000 + index)

    async def _controlled(self, tasks: list[Task], cpu_s: float) -> list[Judged]:
        if not self.config.control.enabled:
            return []
        ladder = [task for task in tasks if task.split != "real"]
        path = self.directory / "evaluation-control.json"
        if not path.exists():
            actor = ControlActor.remote(self.config)
            bits, metrics = await within(actor.run.remote(cpu_s), 60 + 3 * cpu_s, "the fine-tuning control")
            self.stats.write("control", metrics)
            await within(
                self.cluster.engines[0].put.remote(bits, CONTROL_VERSION), 60, "the engine to load the control"
            )
        return await self._evaluated("control", ladder)

    async def _summary(
        self, base: list[Judged], after: list[Judged], control: list[Judged], training: dict[str, Any], wall_s: float
    ) -> dict[str, Any]:
        from etude.rollouts.summary import summarise

        engine = (await self.cluster.stats())["engine"]
        counters = self.stats.prove_use(FEATURES, engine)
        largest = [line["max_abs_dlogp"] for line in self.stats.history]
        return summarise(base, after, control) | {
            "wall_s": wall_s, "max_abs_dlogp": max(largest, default=0.0),
            **{name: training[name] for name in KEPT},
            "counters": counters,
        }  # fmt: skip


def _claim(directory: Path, config: RunConfig, resume: bool) -> None:
    """A fresh directory for a fresh run, the same recipe for a resumed one."""
    path = directory / "recipe.json"
    recipe = config.model_dump(mode="json")
    if resume:
        if not path.exists():
            raise ConfigError(f"{directory}: no run to resume here; start one without --resume")
        if json.loads(path.read_text()) != recipe:
            raise ConfigError(
                f"{directory}: was started with another recipe; resume with that one ({path}) or start anew"
            )
    elif path.exists():
        raise ConfigError(f"{directory}: holds a run already; go on with --resume, or choose another --out")
    directory.mkdir(parents=True, exist_ok=True)
    _write(path, recipe)


def _write(path: Path, content: Any) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1, default=float) + "\n")
    os.replace(partial, path)

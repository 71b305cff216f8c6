"""A run from its recipe to its summary: evaluate, train, evaluate, control, summarise.

Owns the order of phases and the run directory. Each phase leaves a file there and is not repeated by `resume`; training
goes on from its last checkpoint. Talks to: cluster, controller, evaluate, stats and view.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etude.durable import write_whole
from etude.errors import Exit, Interrupted
from etude.plain import say
from etude.records import Task, Version
from etude.rollouts.claim import claim
from etude.rollouts.cluster import Cluster, cpu_by_part
from etude.rollouts.config import RunConfig
from etude.rollouts.control import ControlActor
from etude.rollouts.controller import Controller
from etude.rollouts.evaluate import Judged, as_json, evaluate, evaluation_set, from_json, pass_rate, summarise
from etude.rollouts.faults import restarts_of
from etude.rollouts.fleet import FLEET
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.lines import append, note
from etude.rollouts.live import Changes, ControlSocket
from etude.rollouts.loop import train
from etude.rollouts.operator import Operator
from etude.rollouts.preflight import preflight
from etude.rollouts.proof import remarks, require_used, unused, used
from etude.rollouts.ray_process import within
from etude.rollouts.sample import Sample
from etude.rollouts.schedule import schedule_of, training_minutes
from etude.rollouts.slots import Slot, State
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream, of_directories, of_family
from etude.rollouts.view import View, ViewState
from etude.rollouts.watch import Watch, seen

KEPT = ("samples_per_s", "trainer_busy", "engine_busy", "cpu_by_part", "steps", "rollouts")
CONTROL_VERSION = Version(1_000_000)


class Run:
    """One run directory and the phases that fill it."""

    def __init__(self, config: RunConfig, directory: Path, resume: bool, quiet: bool = False) -> None:
        self.config, self.directory, self.quiet = config, directory, quiet
        self.claimed = claim(directory, config, resume)  # a second start is kept out until this process ends
        self.changes = Changes(config, directory)
        self.stopping = False
        self.controller: Controller | None = None
        self.watch: Watch | None = None
        self.begun = False
        self.main: asyncio.Task[Any] | None = None

    async def execute(self) -> dict[str, Any]:
        """All phases; returns the summary that is also written to summary.json. Raises UnusedFeature after that, where
        the recipe enables what the run never used.
        """
        started = time.monotonic()
        self.main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        studio = f"etude studio {self.directory}"
        with View(ViewState(recipe=self.config.name, studio=studio), self.quiet) as self.view:
            self._phase("starting")
            await preflight(self.config, self.directory)
            self.cluster = await Cluster.start(self.config, self.directory, self._end_with_head)
            self.view.line(f"see it in a browser: {studio}")  # there is something to see now
            self.cluster.restarts.told = self.view.warn
            try:
                operator = Operator(self.changes, self.cluster, lambda: self.controller, self._note, self._seen)
                async with ControlSocket(self.directory, operator.answer):
                    summary = await self._phases(started)
                self._phase("done")
                require_used(summary["not_acted"], summary["counters"])
                return summary
            except asyncio.CancelledError:
                raise Interrupted(f"stopped; what is done is saved in {self.directory}: go on with --resume") from None
            finally:
                await self.cluster.close()

    def _phase(self, name: str, tasks: int = 0) -> None:
        """Tell the view what goes on now."""
        state = self.view.state
        state.phase, state.evaluated, state.to_evaluate, state.left_s = name, 0, tasks, None
        if self.begun:  # what has written nothing may be started anew
            note(self.directory / "metrics.jsonl", "phase", {"name": name, "tasks": tasks})
        self.view.line(f"{name}{f' ({tasks} tasks)' if tasks else ''}")
        self.view.refresh()

    def _note(self, kind: str, line: dict[str, Any]) -> None:
        """Write down and show what an operator has done."""
        self.view.line(f"{kind}: {json.dumps(line)}")
        note(self.directory / "metrics.jsonl", kind, line)

    def _seen(self) -> dict[str, Any]:
        """What goes on, for who watches from outside."""
        return seen(self.view.state, self.watch)

    def stop(self) -> None:
        """End training after the step in progress, and any other phase at once; what is saved can be resumed."""
        self.stopping = True
        self.view.state.phase = "stopping"
        if self.controller is not None:
            self.view.line("stopping after this step; Ctrl-C again ends it at once, and loses what is not saved")
            self.controller.stopping = True
            self.controller.changed.set()
        elif self.main is not None:
            self.main.cancel()

    def _end_with_head(self, why: str) -> None:
        """As if it was killed: nothing of Ray's can be asked now, nor closed, and what tries to would wait for ever."""
        self.view.close()
        say(
            f"etude train: {why}; after `etude cluster up`, --resume goes on with what is saved in {self.directory}",
            sys.stderr,
        )
        os._exit(Exit.FAILED)

    async def _phases(self, started: float) -> dict[str, Any]:
        tasks = evaluation_set(self.config.evaluation, self.config.rollouts.family)
        state = await self.cluster.trainer.resume() or {}
        self.stats = RunStats(self.directory / "metrics.jsonl", state.get("stats"), state.get("line"))
        self.begun = True
        self.claimed.write_recipe()  # its ranks have met, and taken up what was saved
        self._count_publications(state)
        self.cluster.trainer.on_resumed = self._count_publications
        self.cluster.fleet.on_joining = self.stats.swapped
        self._phase("publishing")
        version = await self._engines_at_newest(self._sampled_under(state))
        await self._say_room()
        watch = self.watch = Watch(self.view, self.cluster, self.stats)
        watching = asyncio.create_task(watch.run())
        try:
            return await self._measured(tasks, state, version, started)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                self.view.line(f"the view stood still from some moment on: {watching.exception()!r}")

    def _count_publications(self, state: dict[str, Any]) -> None:
        """Those that a trainer found in the store when it resumed, and that nobody had counted; and its checkpoint."""
        self.stats.counters["saved_beside"] = max(self.stats.counters["saved_beside"], bool(state))
        for publication in state.get("publications", ()):
            self.stats.published(publication)

    async def _measured(
        self, tasks: list[Task], state: dict[str, Any], version: Version, started: float
    ) -> dict[str, Any]:
        evaluating = time.monotonic()
        base = await self._evaluated("base", tasks)
        now = time.monotonic()
        training = await self._trained(state, version, self._budget(now - started, now - evaluating))
        await self._engines_at_newest()
        after = await self._evaluated("after", tasks)
        control = await self._controlled(tasks, training["cpu_s"])
        summary = await self._summary(base, after, control, training, time.monotonic() - started)
        _write(self.directory / "summary.json", summary)
        return summary

    async def _engines_at_newest(self, under: dict[str, Any] | None = None) -> Version:
        """Every engine has the trainer's version, or the one `under` it; returns which."""
        published = await self.cluster.trainer.publish(
            lambda encoded: self.view.line(f"publishing: {encoded / 1e6:.0f} MB of the weights are encoded")
        )
        self.stats.published(published)
        raw, sent, took = published["raw_bytes"], published["delta_bytes"], published["publish_ms"]
        self.view.line(
            f"version {published['version']} is in the store: {raw / 1e6:.1f} MB of weights in {sent / 1e6:.1f} MB, "
            f"{took / 1000:.1f} s"
        )
        told = under or published
        self.stats.swapped(told, await self.cluster.fleet.deliver(told))
        return Version(told["version"])

    async def _say_room(self) -> None:
        """What engines have chosen by the memory there is."""
        engine = (await self.cluster.stats())["engine"]
        if tokens := engine.get("cache_tokens"):
            self.view.line(f"the engines' caches hold {tokens:,.0f} positions")

    async def _evaluated(self, label: str, tasks: list[Task]) -> list[Judged]:
        path = self.directory / f"evaluation-{label}.json"
        if path.exists():
            return from_json(json.loads(path.read_text()))
        started = time.monotonic()
        self._phase(f"evaluating {label}", len(tasks))

        def count(sample: Sample) -> None:
            del sample
            self.view.state.evaluated += 1

        results, _ = await evaluate(self.cluster, tasks, self.config.evaluation, label, count)
        self.stats.write("evaluation", {"label": label, "seconds": time.monotonic() - started})
        _write(path, as_json(results))
        passed, played = pass_rate(results, split="eval")
        self.view.state.figures[f"{label} pass@1"] = passed / max(1, played)
        self.view.line(f"{label}: {passed} of {played} {self.config.rollouts.family} tasks solved")
        return results

    def _budget(self, elapsed_s: float, evaluation_s: float) -> RunConfig:
        """The recipe with the minutes there are for training: worked out once, so that a resumed run has the same."""
        path = self.directory / "budget.json"
        if not path.exists():
            _write(path, {"max_minutes": training_minutes(self.config, elapsed_s, evaluation_s)})
        recipe = self.changes.current
        rollouts = recipe.rollouts.model_copy(update=json.loads(path.read_text()))
        return recipe.model_copy(update={"rollouts": rollouts})

    def _sampled_under(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """The publication that samples what is under way, where it is not the newest."""
        if not state or self._is_trained():
            return None
        first, under = schedule_of(self.config, state).first(), state["under"]
        return under if first is not None and first == under["version"] else None

    def _is_trained(self) -> bool:
        return (self.directory / "training.json").exists()

    async def _trained(self, state: dict[str, Any], version: Version, config: RunConfig) -> dict[str, Any]:
        path = self.directory / "training.json"
        if self._is_trained():
            return json.loads(path.read_text())
        self._phase("training")
        budget = config.rollouts
        source = of_directories(budget.tasks) if budget.tasks else of_family(budget.family, budget.rungs, config.seed)
        stream = TaskStream(source, config.seed, budget.by_difficulty, state.get("stream"))
        ledger = GroupLedger(self.directory / "ledger")
        controller = Controller(config, self.cluster, stream, self.stats, ledger, state)
        self._followed(controller)
        controller.slots.on_move = self._witnesses(config.faults.journal)
        before = await self._gauges()
        trained = Version(state["line"]["version"]) if state else Version(0)
        await controller.start(trained, version)
        try:
            await train(controller)
        finally:
            await controller.stop()
            self._followed(None)
        await controller.settle()
        if self.stopping:
            raise asyncio.CancelledError
        after = await self._gauges()
        wall, there_s = after["at"] - before["at"], after["engine_s"] - before["engine_s"]
        split = {part: after["cpu"][part] - before["cpu"][part] for part in after["cpu"]}
        lives = controller.elapsed() / wall  # a resumed run has spent as much in its lives before, by the clock
        training = {
            "wall_s": wall, "cpu_s": sum(split.values()) * lives, "cpu_by_part": split, "steps": self.stats.steps,
            "rollouts": after["rollouts"] - before["rollouts"], "version": int(controller.version),
            "engine_busy": (after["engine_busy_s"] - before["engine_busy_s"]) / there_s,
            "trainer_busy": controller.trainer_busy_s / wall,
            "samples_per_s": (after["rollouts"] - before["rollouts"]) / wall,
        }  # fmt: skip
        model = self.directory / "model"
        await self.cluster.trainer.save_model(model)
        training["samples"] = await controller.end()
        _write(path, training)
        self.cluster.trajectories.clear()  # what was under way at the end is not gone on with
        return training

    def _followed(self, controller: Controller | None) -> None:
        self.controller = controller
        if self.watch is not None:
            self.watch.controller = controller

    def _witnesses(self, journal: bool) -> Callable[[Slot, State | None], None]:
        """Those who are told of every move of a slot."""
        told: list[Callable[[Slot, State | None], None]] = [self.watch.moved] if self.watch is not None else []
        if journal:
            told.append(journal_of(self.directory))

        def tell(slot: Slot, before: State | None) -> None:
            for each in told:
                each(slot, before)

        return tell

    async def _gauges(self) -> dict[str, Any]:
        """Clocks and counts whose differences a phase is measured by."""
        engine = (await self.cluster.stats())["engine"]
        rollouts = self.stats.counters["rollouts"]
        return {
            "at": time.monotonic(), "cpu": cpu_by_part(), "rollouts": rollouts,
            "engine_busy_s": engine["busy_s"], "engine_s": engine["engine_s"],
        }  # fmt: skip

    async def _controlled(self, tasks: list[Task], cpu_s: float) -> list[Judged]:
        if not self.config.control.enabled:
            return []
        ladder = [task for task in tasks if task.split != "real"]
        path = self.directory / "evaluation-control.json"
        if not path.exists():
            self._phase("training the control")
            actor = ControlActor.remote(self.config)
            bits, metrics = await within(
                actor.run.remote(cpu_s, self.directory / "control"), 60 + 3 * cpu_s, "the fine-tuning control"
            )
            self.stats.write("control", metrics)
            await self.cluster.fleet.put(bits, CONTROL_VERSION)
        return await self._evaluated("control", ladder)

    async def _summary(
        self, base: list[Judged], after: list[Judged], control: list[Judged], training: dict[str, Any], wall_s: float
    ) -> dict[str, Any]:
        engine = (await self.cluster.stats())["engine"]
        restored = bool(self.stats.counters["samples_restored"])
        wanted = used(self.config, self.cluster.model, training["steps"], restored, self.stats.counters["planted"] > 0)
        counters = self.stats.counted(engine)
        missing = unused(wanted, counters)
        for remark in remarks(missing, counters):
            self.view.warn(f"remark: {remark}")
        return summarise(base, after, control) | {
            "wall_s": wall_s, "max_abs_dlogp": self.stats.max_abs_dlogp,
            **{name: training[name] for name in KEPT},
            "delivery": self.stats.delivery(),
            "restarts": restarts_of(self.directory / "metrics.jsonl"),
            "hung": self.cluster.restarts.hung,
            "fleet": {name: int(engine.get(name, 0)) for name in FLEET}, "lending": self.cluster.fleet.lending(),
            "samples": training["samples"],
            "lost": training["samples"]["lost"],
            "trained_twice": training["samples"]["trained_twice"],
            "counters": counters,
            "not_acted": missing,
        }  # fmt: skip


def journal_of(directory: Path) -> Callable[[Slot, State | None], None]:
    """Writes every move of every slot into moves.jsonl, where `faults.journal` asks for it. A line with "began" stands
    at the start of each life of the controller, which knows slots anew from there on. It is a witness only: nothing is
    restored from it.
    """

    def write(**line: object) -> None:
        append(directory / "moves.jsonl", {**line, "at": round(time.time(), 4)})

    write(began=os.getpid())
    return lambda slot, before: write(slot=slot.id, **{"from": before}, to=slot.state, attempt=slot.attempts)


def _write(path: Path, content: Any) -> None:
    write_whole(path, (json.dumps(content, indent=1, default=float) + "\n").encode())

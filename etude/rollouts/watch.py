"""Fills the live view from what runs.

Owns the polling: a background task that asks the actors for their gauges twice a second; and `seen`, the same as plain
data for who watches from outside the process. It never delays the run, and what it cannot learn it leaves as it was.
Talks to: cluster, stats, controller, view.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Any

from ray.exceptions import RayError

from etude.errors import EtudeError
from etude.records import Event
from etude.rollouts.cluster import Cluster
from etude.rollouts.controller import Controller
from etude.rollouts.slots import ENDS, STATES, Slot, State, group_id
from etude.rollouts.stats import RunStats
from etude.rollouts.view import Call, View, ViewState

PERIOD_S = 0.5
MOST_SLOTS, MOST_TEXT = 2000, 4000
GAUGES_S = 2.0
"""Between two lines of the engine's counters in the metrics."""


class Watch:
    """Keeps a view's state fresh while a run goes on."""

    def __init__(self, view: View, cluster: Cluster, stats: RunStats) -> None:
        self.view, self.cluster, self.stats = view, cluster, stats
        self.controller: Controller | None = None
        self.started = time.monotonic()
        self._last: tuple[float, float, float, float] | None = None
        self._shown_steps = stats.steps
        self._gauged_s = 0.0
        self._pending: dict[tuple[int, int], Call] = {}
        self._since: dict[str, float] = {}

    def moved(self, slot: Slot, before: State | None) -> None:
        """Told of every move of a slot."""
        if slot.state in ENDS:
            self._since.pop(slot.id, None)
        else:
            self._since[slot.id] = time.time()

    def slots(self) -> list[dict[str, Any]]:
        """Those alive, in the order of their groups: where each is, since when, and which worker has it."""
        if self.controller is None:
            return []
        groups, placed = self.controller.groups, {}
        for pool in (self.cluster.sessions, self.cluster.rewards):
            placed |= {order: process.name for order, process in pool.placed.items()}
        alive = self.controller.slots.within(*STATES)[:MOST_SLOTS]
        return [
            {
                "id": slot.id, "state": slot.state, "since": self._since.get(slot.id),
                "task": groups.task_of(slot).id if group_id(slot.group_index) in groups.open else "",
                "worker": placed.get(slot.id),
            }
            for slot in alive
        ]  # fmt: skip

    async def run(self) -> None:
        """Until cancelled. A process that hangs or is away is somebody else's to end: it is asked again."""
        while True:
            with contextlib.suppress(EtudeError, RayError):
                self._gauges(await self.cluster.stats())
            self._learning()
            self.view.refresh()
            await asyncio.sleep(PERIOD_S)

    def _gauges(self, gauges: dict[str, Any]) -> None:
        state, engine = self.view.state, gauges["engine"]
        self.stats.saw_engine(engine)
        state.elapsed_s = time.monotonic() - self.started
        state.sandboxes = sum(worker["running"] for worker in gauges["workers"])
        busy = self.controller.trainer_busy_s if self.controller else 0.0
        tokens = engine.get("decode_tokens", 0) + engine.get("prefill_tokens", 0)
        now = (time.monotonic(), engine["busy_s"], engine["engine_s"], float(tokens))
        if self._last is not None:
            passed = now[0] - self._last[0]
            state.engine_busy = _smooth(state.engine_busy, (now[1] - self._last[1]) / max(now[2] - self._last[2], 0.01))
            state.tokens_per_s = _smooth(state.tokens_per_s, (now[3] - self._last[3]) / passed)
        if self.controller is not None:
            trained = self.controller.elapsed() - self.controller.elapsed_s
            state.trainer_busy = busy / max(trained, 1.0)
            state.samples_per_s = self.stats.counters["rollouts"] / max(self.controller.elapsed(), 1.0)
            state.left_s = max(0.0, self.controller.config.rollouts.max_minutes * 60 - self.controller.elapsed())
            if self.controller.elapsed() - self._gauged_s >= GAUGES_S:
                self._gauged_s = self.controller.elapsed()
                self.stats.gauged(engine, self._gauged_s)
        self._last = now
        for worker in gauges["workers"]:
            for rollout, instruction, event in worker["recent"]:
                self._follow(rollout, instruction, event)

    def _learning(self) -> None:
        state, stats = self.view.state, self.stats
        state.history, state.mismatch = stats.history, stats.max_abs_dlogp
        state.ages = {int(age): tokens for age, tokens in stats.ages.items()}
        if stats.steps > self._shown_steps:
            self._shown_steps, line = stats.steps, stats.history[-1]
            self.view.line(
                f"step {stats.steps:4d}  solved {line['solve_rate']:.2f}  reward {line['reward']:+.2f}  "
                f"turns {line['turns']:.1f}  age {line['mean_age']:.1f}  loss {line['loss']:+.4f}  "
                f"rollouts {stats.counters['rollouts']}  {state.elapsed_s:.0f} s"
            )

    def _follow(self, rollout: str, instruction: str, event: Event) -> None:
        """One event of the rollout that is shown."""
        state = self.view.state
        if rollout != state.rollout:
            state.rollout, state.instruction = rollout, instruction
            state.calls.clear()
            self._pending.clear()
        if event.kind == "tool_call":
            arguments = " · ".join(_short(str(value)) for value in event.data.get("arguments", {}).values())
            call = Call(event.data["name"], arguments or _short(str(event.data.get("raw", ""))))
            self._pending[event.data["turn"], event.data["index"]] = call
            state.calls.append(call)
        elif event.kind == "tool_result":
            call = self._pending.pop((event.data["turn"], event.data["index"]), None)
            if call is not None:
                call.result, call.failed = _short(event.data["text"], 60), event.data["error"]


def seen(state: ViewState, watch: Watch | None) -> dict[str, Any]:
    """What goes on, as plain data: times in Unix seconds and seconds, shares from 0 to 1. `watch` is None while the run
    starts."""
    controller = None if watch is None else watch.controller
    call = {"id": state.rollout, "instruction": state.instruction[:MOST_TEXT]}
    return {
        "phase": state.phase,
        "elapsed_s": state.elapsed_s,
        "left_s": state.left_s,
        "evaluated": state.evaluated,
        "to_evaluate": state.to_evaluate,
        "busy": {"engine": state.engine_busy, "trainer": state.trainer_busy},
        "sandboxes": state.sandboxes,
        "throughput": {"samples_per_s": state.samples_per_s, "tokens_per_s": state.tokens_per_s},
        "states": controller.slots.counts() if controller else {},
        "slots": watch.slots() if watch else [],
        "watched": {**call, "calls": [asdict(each) for each in state.calls]} if state.rollout else None,
        "figures": dict(state.figures),
    }


def _smooth(before: float, now: float, weight: float = 0.3) -> float:
    return (1 - weight) * before + weight * now


def _short(text: str, length: int = 40) -> str:
    """The first line that says something, cut."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= length else line[: length - 1] + "…"

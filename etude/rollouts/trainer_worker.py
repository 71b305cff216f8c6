"""The trainer of a run, whatever becomes of its processes.

Owns the steps since the last checkpoint: when a process dies, new ones resume from that checkpoint and are given
exactly those steps again that the checkpoint does not hold, with the same groups and the same state. So a step that was
asked for happens once, and who asked for it sees nothing but time. Where the trainer has several ranks, each is a
process of its own; when one of them is gone, or its machine, so are all. Decides nothing about training, and touches no
weight. Talks to: worker, actors.trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError, RankLost
from etude.records import Version
from etude.rollouts.actors import trainer
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Kind, Restarts
from etude.rollouts.machines.joining import RanksRoom
from etude.rollouts.ray_process import STOP_S, RayProcess
from etude.rollouts.sample import SampleGroup
from etude.rollouts.worker import Worker, WorkerAway, WorkerGone
from etude.weights.background import publish_seconds

STEP_S, RESUME_S, SAVE_S = 600.0, 120.0, 60.0
STATE_BYTES = 6
"""Of a checkpoint, for each of a model's in bf16: a master and two moments in fp32."""
TOLD_S = 5.0
"""Between two words of how far a publication is."""


@dataclass(frozen=True)
class _Asked:
    """A step that was asked for: its number in the run, and with what."""

    step: int
    groups: list[SampleGroup]
    state: dict[str, Any]


class TrainerProcess(RayProcess):
    """The first rank, which is asked for everything, and those of the others: they live and end together."""

    def __init__(self, first: Any, others: list[Any]) -> None:
        super().__init__("the trainer", first, "health")
        self.others = [RayProcess("another rank of the trainer", each, "health") for each in others]

    async def started(self, deadline_s: float) -> None:
        """All of them; those of one machine then follow each other, as what they exchange most should stay there."""
        await asyncio.gather(super().started(deadline_s), *(each.started(deadline_s) for each in self.others))
        assert self.identity is not None
        here = self.identity.host
        self.others.sort(key=lambda each: (_host(each) != here, _host(each)))
        for rank, each in enumerate(self.others, 1):
            each.name = f"rank {rank} of the trainer, on {_host(each)},"

    async def answers(self, deadline_s: float) -> None:
        await asyncio.gather(super().answers(deadline_s), *(each.answers(deadline_s) for each in self.others))

    async def ended(self) -> None:
        """Raises what the first of them ended with."""
        lives = [asyncio.ensure_future(each) for each in (super().ended(), *(each.ended() for each in self.others))]
        try:
            done, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
            for life in done:
                life.result()
        except RankLost as error:
            raise WorkerGone(str(error)) from None
        finally:
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)

    def computes(self) -> bool:
        return super().computes() or any(each.computes() for each in self.others)

    def kill(self) -> None:
        super().kill()
        for each in self.others:
            each.kill()

    async def _answer(self, asked: Awaitable[Any], seconds: float, what: str) -> Any:
        try:
            return await super()._answer(asked, seconds, what)
        except RankLost as error:
            raise WorkerGone(str(error)) from None


def _host(process: RayProcess) -> str:
    assert process.identity is not None
    return process.identity.host


class TrainerWorker:
    """One trainer at a time: two must never write one run. Use it on one event loop. Implements `ProcessSpec`."""

    kind: Kind = "trainer"

    def __init__(self, config: RunConfig, store: str, directory: Path, restarts: Restarts) -> None:
        self.config, self.store, self.directory = config, store, directory
        self.saved: dict[str, Any] | None = None
        """What the newest process has found in the newest checkpoint: the controller's state."""
        self.on_resumed: Callable[[dict[str, Any]], None] = lambda state: None
        """Told that, whenever a new process has taken up the checkpoint."""
        self._step = 0
        """The last that the newest process has made, or has found made."""
        self._since: list[_Asked] = []
        self._stepping, self._room = asyncio.Lock(), RanksRoom(config)
        raw_bytes = sum(file.stat().st_size for file in config.model.path.glob("*.safetensors"))
        self._published_s, self._saved_s = publish_seconds(raw_bytes), publish_seconds(STATE_BYTES * raw_bytes)
        self.worker = Worker(self, 0, restarts)

    async def resume(self) -> dict[str, Any] | None:
        """The controller's state that was saved with the newest checkpoint, None if there is none."""
        await self.worker.ready()
        return self.saved

    async def publish(self, told: Callable[[int], object] = lambda encoded_bytes: None) -> dict[str, Any]:
        """Put the present version into the store, and wait until it is there. `told` hears every few seconds how many
        bytes of its weights are encoded by now.
        """
        seconds = scaled(self._published_s + STOP_S)
        asked = self._ask("publish", seconds=seconds, what="the trainer to publish its version")
        telling = asyncio.create_task(self._tell(told))
        try:
            return await asked
        finally:
            telling.cancel()

    async def _tell(self, told: Callable[[int], object]) -> None:
        while True:
            await asyncio.sleep(TOLD_S)
            with contextlib.suppress(EtudeError):  # whoever waits for the version hears of it
                process = await self.worker.ready()
                told(await process.call("encoded_bytes", seconds=scaled(STOP_S), what="the trainer's progress"))

    async def published(self, version: Version) -> dict[str, Any]:
        """Wait until that version, or a later one in its place, is in the store."""
        seconds = scaled(self._published_s + STOP_S)  # the trainer's own error says more, and comes first
        return await self._ask("published", version, seconds=seconds, what=f"version {version} to be published")

    async def save_model(self, directory: Path) -> None:
        await self._ask("save_model", directory, seconds=scaled(SAVE_S), what="the trainer to save its model")

    async def step(self, groups: list[SampleGroup], state: dict[str, Any]) -> dict[str, Any]:
        """One optimizer step on these groups; returns its metrics, whichever process made it."""
        async with self._stepping:
            await self.worker.ready()  # one that is only on its way there has an older version for a while
            asked = _Asked(state["line"]["step"], groups, state)
            metrics = await self._stepped(asked)
            self._step = asked.step
            self._since.append(asked)
            return metrics

    async def on_disk(self, step: int) -> dict[str, Any]:
        """Wait for the checkpoint of a step that was made, if one is due; returns the newest `step` whose checkpoint is
        there. Those up to it will never be made again.
        """
        seconds, what = scaled(self._saved_s + STOP_S), f"the checkpoint of step {step} to be on the disk"
        found = await self._ask("on_disk", step, seconds=seconds, what=what)
        self._since = [asked for asked in self._since if asked.step > found["step"]]
        return found

    async def _stepped(self, asked: _Asked) -> dict[str, Any]:
        while True:
            process = await self.worker.ready()
            if self._step >= asked.step:
                assert self.saved is not None
                return self.saved["line"]  # a process saved it, and died before it could say so
            try:
                return await process.call(
                    "step", asked.groups, asked.state, seconds=scaled(STEP_S), what="the trainer's step"
                )
            except (WorkerGone, WorkerAway, DeadlineExceeded) as error:
                self.worker.lost(process, str(error))

    async def renew(self) -> None:
        """Let a new process, with the code that is on the disk now, go on after the step in progress."""
        async with self._stepping:
            await self.worker.ready()
            await self.worker.renew("replaced by an operator")

    async def _ask(self, method: str, *arguments: Any, seconds: float, what: str) -> Any:
        while True:
            process = await self.worker.ready()
            try:
                return await process.call(method, *arguments, seconds=seconds, what=what)
            except (WorkerGone, WorkerAway) as error:
                self.worker.lost(process, str(error))

    # --- the policy ---------------------------------------------------------------------------------------------------

    def open(self, place: int) -> TrainerProcess:
        first = self._room.placed(trainer.TrainerActor, 0).remote(self.config, self.store, self.directory)
        further = range(1, self.config.trainer.processes)
        return TrainerProcess(
            first, [self._room.placed(trainer.RankActor, rank).remote(self.config) for rank in further]
        )

    async def prepare(self, process: TrainerProcess) -> None:
        """Have the ranks meet, resume, and make those steps again that were done after the checkpoint; one that was
        not, its caller asks for again.
        """
        others = [each.actor for each in process.others]
        await process.call("open", others, seconds=self.worker.restarts.start_s, what="the trainer's ranks to meet")
        what = "the trainer to load its checkpoint"
        state = self.saved = await process.call("resume", seconds=scaled(RESUME_S), what=what)
        self._step = state["line"]["step"] if state else 0
        for asked in self._since:
            if asked.step > self._step:
                what = "a step to be made again"
                await process.call("step", asked.groups, asked.state, seconds=scaled(STEP_S), what=what)
                self._step = asked.step
        await process.call("hand_over", seconds=scaled(RESUME_S), what="the trainer to hand its version over")
        if state is not None:
            self.on_resumed(state)

    async def look(self, process: TrainerProcess, deadline_s: float) -> None:
        await process.answers(deadline_s)

"""A supervised start: a model learns from sessions before reinforcement learning, or in its place.

    kind = "warm_start"                       which model learns, on which tasks, for how long
    [source]                                  whose sessions it learns from; one table of one of these kinds:
      kind = "expert"        trainer.demonstrations   a script that knows the family plays; nobody judges it
      kind = "hunter"        trainer.hunting          a script without an oracle plays; what it solved is kept
      kind = "rejection"     trainer.rejection        the model itself plays, in rounds; what it solved is kept
      kind = "teacher"       trainer.teacher          a model behind an endpoint plays; what it solved is kept
      kind = "distillation"  trainer.on_policy        the model itself plays; another checkpoint says how it would go on

Owns `make_warm_start`, what `etude pretrain` does with such a recipe, and `WarmStartConfig`, its schema. All sessions
are real ones, through the harness of the recipe, in sandboxes; tasks are a generated family's or those of task
directories, and never those that are kept for measuring. Sessions that are judged are on the disk as they end
(`trainer.taught`), and a command that is given again goes on with them. By the seed, the expert's sessions and the
steps on them are the same on every machine. Whatever such a start teaches, every arm of a comparison that begins from
it has.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Discriminator, Field, Tag, model_validator

from etude.config import Config
from etude.environments.backends import BackendConfig, open_backend
from etude.environments.namespace import NamespaceConfig
from etude.harness.config import HarnessConfig
from etude.models.chat import ChatRenderer, open_chat
from etude.models.files import hashes_of
from etude.models.shipped import model_at
from etude.plugins import named
from etude.records import Limits, Task
from etude.tasks.expert import ExpertConfig
from etude.tasks.limits import LimitsConfig
from etude.tasks.trail_expert import TrailExpertConfig
from etude.trainer.config import Frozen, OptimizerConfig
from etude.trainer.demonstrations import record, recorded
from etude.trainer.documents import Document
from etude.trainer.hunting import HunterSource, HunterStart
from etude.trainer.lessons import Made, Tasks, learn
from etude.trainer.on_policy import DistillationSource, DistillationStart
from etude.trainer.rejection import RejectionSource, RejectionStart
from etude.trainer.teacher import TeacherSource, TeacherStart

LIMITS = Limits(max_turns=32, max_context_tokens=8192, max_sampled_tokens=4096)
"""Of demonstrations on the ladder."""


class ExpertSource(TrailExpertConfig):
    """The trail's scripted expert plays each task once. It is imitated whatever comes of it."""

    kind: Literal["expert"] = "expert"


class LadderExpertSource(ExpertConfig):
    """The ladder's does."""

    kind: Literal["ladder_expert"]


def _kind(table: Any) -> str:
    return table.get("kind", "expert") if isinstance(table, dict) else getattr(table, "kind", "")


Source = Annotated[
    Annotated[ExpertSource, Tag("expert")]
    | Annotated[LadderExpertSource, Tag("ladder_expert")]
    | Annotated[HunterSource, Tag("hunter")]
    | Annotated[RejectionSource, Tag("rejection")]
    | Annotated[TeacherSource, Tag("teacher")]
    | Annotated[DistillationSource, Tag("distillation")],
    Discriminator(_kind),
]


class WarmStartConfig(Config):
    """Who learns from whom, on which tasks, and for how long."""

    kind: Literal["warm_start"]
    model: Path = Path("models/etude-tiny")
    seed: int = 0
    family: Annotated[str, named("families")] = "trail"
    rungs: tuple[int, ...] = ()
    """Of the family's tasks, in turns."""
    directories: tuple[Path, ...] = ()
    """Task directories, or directories of such, in place of a family; of their tasks those of the split `train`."""
    sessions: int = Field(1000, ge=1)
    """That are played: in all, or in each round or step where there are such."""
    limits: LimitsConfig = LimitsConfig()
    source: Source = ExpertSource()
    harness: HarnessConfig
    """That of the runs which begin from here."""
    environment: BackendConfig = NamespaceConfig()
    concurrency: int = Field(16, ge=1)
    """Sessions under way at once."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01, scalar_lr=1e-3)
    tokens: int = 1_000_000
    """To train on: all segments of all sessions, over and over; in each round where there are rounds."""
    tokens_per_step: int = 4096
    frozen: Frozen = ()
    format: Literal["fp32", "bf16"] = "fp32"
    """Both as `ScheduleConfig` has them."""
    threads: int = 1
    """Of a step's arithmetic. Two wait for each other in a small model; in one of 100 million parameters they help.
    Where the model plays by rejection: so many engines of one thread each."""

    def idle(self) -> dict[str, str]:
        found = dict.fromkeys(("family", "rungs"), "with directories") if self.directories else {}
        distils = isinstance(self.source, DistillationSource)
        beside = {"tokens": "with a source that has steps", "format": "where the model that is trained plays, too"}
        return found | (beside if distils else {})

    @model_validator(mode="after")
    def _playable(self) -> WarmStartConfig:
        if not self.directories and not self.rungs:
            raise ValueError("rungs: which rungs of the family are played? Or name task directories: directories = […]")
        knows = {"expert": "trail", "ladder_expert": "ladder"}.get(self.source.kind, self.family)
        if self.source.kind in ("expert", "ladder_expert") and (self.directories or self.family != knows):
            raise ValueError(f"source: this scripted expert knows the {knows} alone; for other tasks take another kind")
        if self.source.kind == "hunter" and (not self.directories or self.harness.toolset != "small"):
            raise ValueError(
                'source: a hunter plays task directories with toolset = "small"; name those that '
                "`etude tasks generate DIR --kind calls` has made: directories = […]"
            )
        return self

    def identity(self) -> Made:
        """What decides the sessions that are judged: of a teacher's or a hunter's, nothing of what is learned of
        them."""
        silent = {"model", "directories", "harness", "threads", "concurrency", "environment"}
        source: Made = self.source.model_dump(mode="json")
        if isinstance(self.source, TeacherSource | HunterSource):
            silent |= {"sessions", "optimizer", "tokens", "tokens_per_step", "frozen", "format"}
        if isinstance(self.source, HunterSource):
            source = {"kind": "hunter", "misspell": self.source.misspell}
        if isinstance(self.source, TeacherSource):
            asked = self.source.endpoint.model_dump(mode="json", exclude={"key_env", "key_file", "headers", "attempts"})
            source = {"kind": "teacher", "endpoint": asked, "reasoning_tokens": self.source.reasoning_tokens}
        if isinstance(self.source, DistillationSource):
            del source["steps"]
            source["teacher"] = hashes_of(self.source.teacher)
        silent |= {"limits"} if self.limits == LimitsConfig() else set()  # as in what was made before there were any
        said = self.model_dump(mode="json", exclude=silent | {"source"})
        model = hashes_of(self.model, weights=not isinstance(self.source, TeacherSource | HunterSource))
        return {**said, "source": source, "model": model, "harness": self.harness.identity()}


def make_warm_start(config: WarmStartConfig, directory: Path) -> Made:
    """Have sessions played, train on them, and save the model to `directory`/model; returns the counters."""
    model_at(config.model)
    torch.set_num_threads(config.threads)
    if isinstance(config.source, RejectionSource):
        return RejectionStart(config, config.source, directory).made()
    if isinstance(config.source, HunterSource):
        return HunterStart(config, config.source, directory).made()
    if isinstance(config.source, TeacherSource):
        return TeacherStart(config, config.source, directory).made()
    if isinstance(config.source, DistillationSource):
        return DistillationStart(config, config.source, directory).made()
    return _imitated(config, directory)


def demonstrated(config: WarmStartConfig) -> list[Task]:
    """The tasks that the expert plays."""
    tasks = Tasks(config).take(0, config.sessions)
    if config.family == "trail":
        return tasks
    # the ladder's limits are those of the smallest model with the shortest prompt
    return config.limits.given_to([replace(each, limits=LIMITS) for each in tasks])


def _imitated(config: WarmStartConfig, directory: Path) -> Made:
    return learn(config, asyncio.run(_recorded(config, open_chat(config.model))), directory)


async def _recorded(config: WarmStartConfig, chat: ChatRenderer) -> list[Document]:
    assert isinstance(config.source, ExpertSource | LadderExpertSource)
    backend = open_backend(config.environment)
    try:
        played = record(
            demonstrated(config), backend, chat, config.source, config.harness, seed=config.seed,
            concurrency=config.concurrency,
        )  # fmt: skip
        return await recorded(played, config.sessions)
    finally:
        await backend.close()

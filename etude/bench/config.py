"""What a benchmark plays, with which policy, how often.

Owns `BenchConfig`, the tables of a TOML file. What decides a result is pinned in the head of the result file
(`bench.results`); `concurrency`, `environment`, `retries` and the like only decide how it is come by. Opens nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from etude.config import Config
from etude.deadlines import DeadlineConfig
from etude.engine.config import EngineConfig
from etude.environments.backends import BackendConfig
from etude.environments.namespace import NamespaceConfig
from etude.harness.config import HarnessConfig
from etude.harness.cost import Price
from etude.harness.endpoint import EndpointConfig
from etude.models.config import ExpertFormat
from etude.models.shipped import shipped_model
from etude.rewards.judge import JudgeConfig, RubricJudge
from etude.rewards.judge.aspects import ASPECTS
from etude.rewards.judgement import Judges
from etude.rewards.quality import QualityConfig
from etude.tasks.limits import LimitsConfig


class TaskSetConfig(Config):
    """Which tasks. What is named is played together, in this order."""

    directories: tuple[Path, ...] = ()
    """Harbor task directories, or directories of such."""
    ladder: int = Field(0, ge=0)
    """Fixed ladder tasks of each rung."""
    heldout: int = Field(0, ge=0)
    """The same, with held-out shapes, bugs and words."""
    real: Literal["", "eval", "exam"] = ""
    """A set of real code: "eval" is for choices. "exam" is sealed: whoever looks at a result on it and then changes
    something has used it up."""
    sample: int = Field(0, ge=0)
    """Of all these only so many, drawn by their ids, so that runs of one number play the same; 0 for all."""


class CheckpointPolicy(Config):
    """A checkpoint, through our own engine in this process."""

    kind: Literal["checkpoint"] = "checkpoint"
    path: Path = Field(default_factory=shipped_model)
    """A directory; where none is named, the small model that comes with Etude."""
    expert_format: ExpertFormat = "plain"
    """What experts multiply in: as the checkpoint was trained with."""
    temperature: float = Field(1.0, ge=0)
    """0 takes the likeliest token each time."""
    engine: EngineConfig = EngineConfig()
    engines: int = Field(1, ge=1)
    """Of this model, side by side in this process. Where there are several, each has one thread: as many as cores play
    nearly that many times as fast."""


class EndpointPolicy(Config):
    """A model behind an OpenAI-compatible endpoint."""

    kind: Literal["endpoint"] = "endpoint"
    endpoint: EndpointConfig
    price: Price | None = None
    """Of the model; with it what attempts cost is reported."""


class AcpPolicy(Config):
    """Any agent that speaks the Agent Client Protocol. It runs on this machine with the rights of whoever runs the
    benchmark, in a directory with the task's workspace."""

    kind: Literal["acp"] = "acp"
    command: tuple[str, ...] = Field(min_length=1)
    """How the agent is started: a program and its arguments."""
    pass_env: tuple[str, ...] = ()
    """Variables that it is given beside PATH, HOME and the like: those that hold its keys."""
    start_s: float = Field(60.0, gt=0)
    """For it to start and to open a session."""


class SolutionPolicy(Config):
    """No model: plays a task's own solution in a share of its attempts, and gives up in the others. It shows whether a
    task set can be solved through the harness at all, and what the benchmark finds of a skill that is known. No
    limit of tokens cuts it off."""

    kind: Literal["solution"] = "solution"
    skill: float = Field(1.0, ge=0, le=1)
    """The share of attempts that play the task's solution; the others give up."""


class HunterPolicy(Config):
    """No model: the script of `etude pretrain`'s hunters plays (`tasks.hunter`). It tries the small changes of one line
    that bugs of the built-in sets are made by: what has learned from it is compared with it."""

    kind: Literal["hunter"] = "hunter"
    path: Path = Field(default_factory=shipped_model)
    """The checkpoint whose tokens its messages are counted in."""


def _kind(table: Any) -> str:
    return table.get("kind", "checkpoint") if isinstance(table, dict) else getattr(table, "kind", "")


PolicyConfig = Annotated[
    Annotated[CheckpointPolicy, Tag("checkpoint")]
    | Annotated[EndpointPolicy, Tag("endpoint")]
    | Annotated[AcpPolicy, Tag("acp")]
    | Annotated[SolutionPolicy, Tag("solution")]
    | Annotated[HunterPolicy, Tag("hunter")],
    Discriminator(_kind),
]


class BenchConfig(Config):
    """One benchmark."""

    name: str = ""
    """In reports; empty: that of the run's directory."""
    tasks: TaskSetConfig = TaskSetConfig()
    policy: PolicyConfig = CheckpointPolicy()
    attempts: int = Field(1, ge=1)
    """Of each task."""
    seed: int = 0
    """With task and attempt it seeds the draws of a checkpoint; an endpoint draws as it likes."""
    harness: HarnessConfig = HarnessConfig()
    """`harness.lenient_calls` is the loose harness; without it, calls must be of their schema to the letter."""
    audit: Literal["off", "watch", "punish"] = "off"
    """Whether the auditor reads every session, and whether an attempt that cheated is solved. Costs a sandbox each."""
    quality: bool = False
    """Whether lints, style, work left undone and last messages are looked at (`rewards.quality`); a sandbox each."""
    judge: JudgeConfig | None = None
    """A model that judges every attempt: intent, instructions, restraint, quality, and the task's own rubric."""
    limits: LimitsConfig = LimitsConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    environment: BackendConfig = NamespaceConfig()
    concurrency: int = Field(8, ge=1)
    """Attempts under way at once."""
    retries: int = Field(2, ge=0)
    """How often an attempt that our machinery failed is played anew before its failure is named."""
    retry_pause_s: float = Field(1.0, ge=0)
    """Before the first of them; each pause is twice the one before."""
    failures_in_a_row: int = Field(16, ge=1)
    """Attempts in a row without a verdict that end the run: something is broken that playing on would not mend."""

    def judges(self) -> Judges:
        """Who is asked of every attempt; closes the judge at its end."""
        each = float(self.quality)
        quality = QualityConfig(lint_penalty=each, style_penalty=each, todo_penalty=each, talk_penalty=each)
        rubric = None if self.judge is None else RubricJudge(self.judge)
        return Judges(self.audit != "off", quality=quality, rubric=rubric, aspects=ASPECTS, always=True)

"""The recipe of a run: one frozen config of the rooms' own configs.

Owns `RunConfig` and what only the controller decides: how many rollouts, how fresh, for how long, evaluated how. A
recipe is a TOML file in recipes/ with these tables; an unknown key is refused with its path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from etude.config import Config
from etude.deadlines import DeadlineConfig
from etude.engine.config import EngineConfig
from etude.engine.opening import EngineChoice
from etude.environments.backends import BackendConfig
from etude.environments.cluster.settings import LaunchConfig
from etude.environments.namespace import NamespaceConfig
from etude.harness.config import HarnessConfig
from etude.models.config import ExpertFormat
from etude.models.shipped import shipped_model
from etude.plugins import named
from etude.rewards.reward import RewardConfig
from etude.rollouts.faults import FaultConfig
from etude.rollouts.groups import GroupConfig
from etude.rollouts.machines.config import MachinesConfig
from etude.tasks.families import Family, family
from etude.trainer.config import TrainerConfig
from etude.weights.opening import is_local
from etude.weights.publisher import PublisherConfig
from etude.weights.store import StoreConfig
from etude.weights.subscriber import SubscriberConfig

Url = Annotated[str, Field(pattern=r"^https?://[^/]+/?$")]


class BorrowingConfig(Config):
    """Servers of the product (`etude serve`) whose engines the run borrows while their users are few.

    Each server has a `lending` table of its own, which says how soon its engine is back; a user's request to a lent one
    recalls it in any case.
    """

    opens: ClassVar[str] = "etude.rollouts.lending.borrower:Borrower"
    """The `fleet.Lender` that a fleet opens by it: nothing else of the run knows of it."""
    urls: tuple[Url, ...] = Field(min_length=1)
    """All that share the users' traffic, behind one load balancer: their load decides together."""
    token_file: Path | None = None
    """Holds the token that the servers ask for; None: they ask for none."""
    keep: int = Field(1, ge=0)
    """So many are left to users at any time."""
    borrow_below: float = Field(1.0, gt=0)
    """One is borrowed when those that are left would have fewer users' requests under way each, on average. Some are
    given back as soon as those that serve users have more than twice as many each, until they would not."""


class EngineFleetConfig(Config):
    """How many engines, and whose."""

    engines: int | None = Field(None, ge=0)
    """Engine processes of the run's own, each with all weights. None: one, or one for each server in `engine.urls`. 0
    where `lending` gives it some: the run then waits while all are with their users."""
    lending: BorrowingConfig | None = None


class ModelSource(Config):
    """The model that training begins with."""

    path: Path = Field(default_factory=shipped_model)
    """A checkpoint directory in a published layout, relative to where the command is run; where none is named, the
    small model that comes with Etude."""
    expert_format: ExpertFormat = "plain"
    """What experts multiply in, in trainer and engine alike: nothing is quantised after training."""


class RolloutConfig(Config):
    """How many rollouts, where, for how long."""

    groups_per_step: int = Field(8, ge=1)
    """How many groups make a batch."""
    concurrency: int = Field(64, ge=1)
    """Rollouts in flight."""
    schedule: Literal["free", "lockstep"] = "free"
    """Whether steps and samples run free of each other, or in a fixed order whose result does not depend on speed: see
    `rollouts.schedule`.
    """
    lag: int = Field(0, ge=0, le=1)
    """In lockstep: how many steps ahead of the trainer is sampled."""
    by_difficulty: bool = False
    """Draw rungs, or tasks of `tasks`, by how uncertain their outcome is (`etude/tasks/curriculum.py`), not in turn."""
    workers: int = Field(1, ge=1)
    """Processes that run sessions, and as many that judge what those have sealed."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling; the loss is computed at the same."""
    max_steps: int = Field(1000, ge=1)
    """Training ends after so many optimizer steps, if not sooner."""
    max_minutes: float = Field(6.0, gt=0)
    """Of training."""
    total_minutes: float | None = Field(None, gt=0)
    """Of the whole run: training gets what evaluations and control leave of it, and no more than `max_minutes`."""
    attempts: int = Field(3, ge=1)
    """At a sample, before infrastructure has failed it for good; ten times as many failures in a row end the run."""
    family: Annotated[str, named("families", Family)] = "ladder"
    """What is trained on and evaluated: `ladder`, `trail`, which outgrows its context, or another of the group
    `etude.families`, or package.module:attribute."""
    rungs: tuple[int, ...] = Field((1, 2, 3, 4, 5, 6, 7, 8), min_length=1)
    """Which rungs of the family training tasks come from, in turns; repeat one to weigh it more."""
    tasks: tuple[Path, ...] = ()
    """Harbor task directories, or directories of such, whose tasks of the split "train" are trained on in place of the
    family's: mined, generated or your own. The family is what is evaluated all the same."""
    checkpoint_every: int = Field(1, ge=1)
    """Optimizer steps between checkpoints of trainer and controller."""

    def idle(self) -> dict[str, str]:
        found = {} if self.schedule == "lockstep" else {"lag": 'with schedule = "free"'}
        return found | ({"rungs": "where tasks are given: it is the family's"} if self.tasks else {})

    @model_validator(mode="after")
    def _known(self) -> RolloutConfig:
        known = family(self.family).rungs
        if absent := sorted(set(self.rungs) - set(known)):
            raise ValueError(f"rungs: no rung {absent[0]} in the {self.family}; there are {known}")
        return self


class BesideConfig(Config):
    """Development tasks, played now and then beside training by the weights that engines hold then: `dev_pass1` in the
    steps' lines. It takes of the time there is for training."""

    per_rung: int = Field(2, ge=1)
    """Tasks of each rung, always the same. No other evaluation has them."""
    max_steps: int = Field(10, ge=1)
    """Optimizer steps from the start of one evaluation to that of the next."""


class EvaluationConfig(Config):
    """What is evaluated before and after training, and how."""

    per_rung: int = Field(64, ge=0)
    """Fixed tasks of each rung. 0: none, for a run whose own tasks `etude bench` measures."""
    heldout_per_rung: int = Field(24, ge=0)
    """The same, with held-out shapes, bugs and words."""
    real: bool = True
    """Also the development set of real code."""
    temperature: float = Field(1.0, ge=0)
    """Of sampling there; 0 takes the likeliest token."""
    concurrency: int = Field(96, ge=1)
    """Sessions under way at once."""
    beside: BesideConfig | None = None
    """What is evaluated while training goes on; None: nothing."""


class ControlConfig(Config):
    """Supervised fine-tuning on clean demonstrations, at the CPU time reinforcement learning took."""

    enabled: bool = True
    """Costs as much CPU time again as training did."""


class RunConfig(Config):
    """A whole recipe: the tables of a TOML file in recipes/."""

    name: str
    """What the run is called; with the seed it names its directory."""
    seed: int = 0
    """Of all that is drawn: tasks, samples and their order."""
    deadlines: DeadlineConfig = DeadlineConfig()
    model: ModelSource = ModelSource()
    environment: BackendConfig = NamespaceConfig()
    cluster: LaunchConfig | None = None
    """The cluster of sandboxes that the run starts on its Ray: required where `environment.kind` is "cluster", and
    refused elsewhere."""
    machines: MachinesConfig | None = None
    """The Ray of several machines that the run joins; None: it starts one of its own, on this machine."""
    harness: HarnessConfig = HarnessConfig()
    engine: EngineChoice = EngineConfig()
    fleet: EngineFleetConfig = EngineFleetConfig()
    groups: GroupConfig = GroupConfig()
    trainer: TrainerConfig = TrainerConfig()
    store: str | None = None
    """The directory or URL under which each run has a weight store of its name; None: in the run's own directory."""
    weight_store: StoreConfig = StoreConfig()
    """How it is read and written; a relay is for the engines only."""
    publisher: PublisherConfig = PublisherConfig()
    subscriber: SubscriberConfig = SubscriberConfig()
    rewards: RewardConfig = RewardConfig()
    rollouts: RolloutConfig = RolloutConfig()
    faults: FaultConfig = FaultConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    control: ControlConfig = ControlConfig()

    @model_validator(mode="after")
    def _of_one_family(self) -> RunConfig:
        if self.rollouts.family != "ladder" and (self.evaluation.real or self.control.enabled):
            raise ValueError(
                f'rollouts.family = "{self.rollouts.family}": set evaluation.real and control.enabled to false; both '
                "are of the ladder"
            )
        return self

    def idle(self) -> dict[str, str]:
        found = {}
        if self.store is None or is_local(self.store):
            found["weight_store.options"] = "with a store on this machine"
        if self.trainer.ranks != 1:
            found["publisher.merge"] = "with several ranks, which always store merged deltas"
        if self.groups.overlong == "drop":
            of_cut = ("rewards.unfinished_penalty", "trainer.advantages.overlong")
            found |= dict.fromkeys(of_cut, 'with groups.overlong = "drop", as what was cut is in no group')
        if self.rollouts.schedule == "lockstep":
            of_free = (f"groups.{key}" for key in ("max_staleness", "straggler_s", "when_stale", "window_share"))
            found |= dict.fromkeys(of_free, "in lockstep, where a step has its fixed groups")
            if self.rollouts.lag == 0:
                found["trainer.parity_tokens"] = "in lockstep without a lag, where no sample is of an older version"
        elif self.groups.max_staleness == 0:
            found["trainer.parity_tokens"] = "with groups.max_staleness = 0, as no sample is of an older version"
        return found

    @model_validator(mode="after")
    def _examined(self) -> RunConfig:
        if not (self.evaluation.per_rung or self.rollouts.tasks):
            raise ValueError("evaluation.per_rung: 0 leaves nothing to measure; it is for runs with rollouts.tasks")
        return self

    @model_validator(mode="after")
    def _as_they_are(self) -> RunConfig:
        if self.trainer.mesh is not None and self.model.expert_format != "plain":
            raise ValueError(
                f'model.expert_format = "{self.model.expert_format}": the ranks of a mesh (trainer.ranks is a table) '
                'multiply experts as they are; set it to "plain", or give trainer.ranks a number'
            )
        return self

    @model_validator(mode="after")
    def _measured(self) -> RunConfig:
        if self.machines is not None and self.control.enabled:
            raise ValueError(
                "control.enabled: the control trains for as much CPU time as training took, which is measured on one "
                "machine only; set it to false where `machines` is given"
            )
        return self

    @model_validator(mode="after")
    def _in_step(self) -> RunConfig:
        """What would make lockstep depend on speed is refused."""
        if self.rollouts.schedule == "free":
            return self
        wrong = {
            "rollouts.by_difficulty: what is known of tasks depends on speed": self.rollouts.by_difficulty,
            "publisher.when_behind: every version is needed": self.publisher.when_behind != "wait",
        }
        for what, applies in wrong.items():
            if applies:
                raise ValueError(f"{what} in lockstep; leave it out")
        return self

    def store_of(self, directory: Path) -> str:
        """The URL or path of the weight store of the run in this directory."""
        if self.store is None:
            return f"file://{(directory / 'weights').resolve()}"
        return f"{self.store.rstrip('/')}/{directory.resolve().name}/weights"

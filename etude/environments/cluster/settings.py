"""What a cluster is started with: a recipe's few keys, and from them its agents' config and its scheduler's.

Owns the configs alone, without Ray. Only `LaunchConfig` is a recipe's table; the others are what tests vary. An agent's
journal and its log of events are in a directory named after it, so that two agents of one machine keep apart.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from etude.config import Config
from etude.environments import store
from etude.environments.backends import LocalConfig
from etude.environments.base import Resources
from etude.environments.cluster.pressure import capacity
from etude.environments.lives import NodeConfig
from etude.environments.namespace import NamespaceConfig
from etude.environments.remote import default_state_dir
from etude.environments.scheduling.queues import QueueConfig
from etude.environments.scheduling.scheduler import SchedulerConfig


class AgentConfig(Config):
    """What an agent gives of its machine, and how often it says how it is."""

    node: NodeConfig = NodeConfig()
    memory_mb: int | None = Field(None, ge=1)
    """What all sandboxes together may take; None: `share` of the machine's."""
    cpus: float | None = Field(None, gt=0)
    """None: those of the machine that this process may use."""
    disk_mb: int | None = Field(None, ge=1)
    """None: `share` of the file system that sandboxes are kept on."""
    share: float = Field(0.9, gt=0, le=1)
    start_slots: int = Field(4, ge=1)
    """Starts it does at once without each slowing the others."""
    heartbeat_s: float = Field(1.0, gt=0)
    list_every: int = Field(5, ge=1)
    """Every so many heartbeats list all that is there, and so mend what a lost message broke."""

    def state_dir(self, agent: str) -> Path:
        """Where the agent of this name remembers."""
        return (self.node.state_dir or default_state_dir()) / "agents" / agent

    @property
    def sandboxes_dir(self) -> Path:
        """Where the files of sandboxes are kept, as far as that is ours to say."""
        named = (each.state_dir for each in self.node.backends if isinstance(each, NamespaceConfig))
        return next(named, None) or store.default_state_dir()

    def resources(self) -> Resources:
        """What this machine gives to sandboxes."""
        whole = capacity(self.sandboxes_dir)
        memory_mb = self.memory_mb or int(whole.memory_mb * self.share)
        disk_mb = self.disk_mb or int(whole.disk_mb * self.share)
        return Resources(memory_mb, 0, self.cpus or whole.cpus, disk_mb)


class ServiceConfig(Config):
    """How the scheduler decides, and how it is served."""

    scheduler: SchedulerConfig = SchedulerConfig(snapshots_move=False, recover_s=5.0)
    """`recover_s` counts after a restart only."""
    send_s: float = Field(10.0, gt=0)
    """How long a machine may take to take an order; after that it is as lost, and ordered again where need be."""
    askers: int = Field(5_000, ge=1)
    """Callers that may wait inside at once; the others are told to ask again."""


class LaunchConfig(Config):
    """A whole cluster, as a recipe has it: every machine's agent gives the same."""

    backends: tuple[LocalConfig, ...] = Field((NamespaceConfig(),), min_length=1)
    """What each machine makes sandboxes with; the first where nothing else is asked for."""
    state_dir: Path | None = None
    """Where agents keep what they must remember; None: below XDG_STATE_HOME, or ~/.local/state."""
    memory_mb: int | None = Field(None, ge=1)
    """What all sandboxes of a machine together may take; None: nine tenths of the machine's."""
    cpus: float | None = Field(None, gt=0)
    """None: those of the machine that this process may use."""
    disk_mb: int | None = Field(None, ge=1)
    """None: nine tenths of the file system that sandboxes are kept on."""
    weights: dict[str, float] = {}
    """Of tenants, whose shares of a full cluster are in proportion; 1 for those not named."""

    def agent(self) -> AgentConfig:
        """What every machine's agent is started with."""
        node = NodeConfig(backends=self.backends, state_dir=self.state_dir)
        return AgentConfig(node=node, memory_mb=self.memory_mb, cpus=self.cpus, disk_mb=self.disk_mb)

    def service(self) -> ServiceConfig:
        """What the scheduler is started with."""
        usual = ServiceConfig()
        queues = QueueConfig(weights=self.weights)
        return usual.model_copy(update={"scheduler": usual.scheduler.model_copy(update={"queues": queues})})

"""How the sandboxes of a cluster are asked for: the config of the `cluster` backend, without the libraries it needs.

Owns `ClusterConfig`. What the cluster itself is started with is in `settings`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from etude.deadlines import Wait
from etude.environments.plugin import BackendTable, Plugin
from etude.environments.scheduling.messages import Isolation, Priority


class ClusterConfig(BackendTable):
    """A cluster that runs on the Ray this process has joined, and what to ask of it."""

    kind: Literal["cluster"] = "cluster"
    name: str = Field("etude", pattern=r"^[a-z0-9-]{1,32}$")
    """Which one, where a Ray has several."""
    backend: str | None = None
    """Sandboxes are made on the machines' backend of this name; it is an error where there is none. None: any."""
    isolation: Isolation | None = None
    """Sandboxes are made on a backend of this isolation level; it is an error where there is none. None: any."""
    tenant: str = Field("training", min_length=1)
    """On whose behalf: room is shared fairly between tenants."""
    priority: ClassVar[Priority] = "training"
    """People who wait come first."""
    ttl_s: ClassVar[float] = 3600.0
    """Of sandboxes whose spec names none: what ends them should this process be killed."""
    open_s: ClassVar[Wait] = Wait(60.0)
    """How long the cluster may take to have a machine that offers what is asked for."""
    start_s: ClassVar[Wait] = Wait(900.0)
    """How long a sandbox may take to be ready, its time in the queue included: a full cluster empties in minutes."""
    unreachable_s: ClassVar[Wait] = Wait(60.0)
    """How long to go on asking a scheduler that is gone; it is started again meanwhile."""


PLUGIN = Plugin(ClusterConfig, "etude.environments.cluster.backend:ClusterBackend", extra="train")

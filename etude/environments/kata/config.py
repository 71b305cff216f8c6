"""How sandboxes are made on a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.environments.container.config import ContainerConfig

_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class KataConfig(ContainerConfig):
    """How pods are made; they need a cluster with Kata Containers, a namespace of their own in it, and an image."""

    kind: Literal["kata"] = "kata"
    isolation: Literal["vm"] = "vm"
    kubeconfig: Path | None = None
    """Who we are and where the cluster is; None: $KUBECONFIG, ~/.kube/config, or the account of the pod we run in."""
    context: str | None = None
    """Which of the kubeconfig's contexts; None: its current one."""
    namespace: str = Field("etude", pattern=_DNS_LABEL)
    """Where pods are made. For sandboxes alone: it must exist, and no network policy in it may let anything through."""
    runtime_class: str = "kata"
    """The RuntimeClass of every pod, whose handler must be one of Kata's."""
    network_policies_enforced: bool = False
    """The operator's word that a network plugin of this cluster enforces NetworkPolicy. Without it nothing keeps a pod
    from the network, whatever the API has accepted: so it must be given, and is then tried from inside."""
    life_s: int = Field(86_400, ge=60)
    """After so long the cluster itself ends a pod, whoever still uses it: the last resort against those forgotten."""
    concurrent_starts: int = Field(16, ge=1)
    api_timeout_s: float = Field(30.0, gt=0)
    """For one answer of the cluster's API."""
    start_timeout_s: float = Field(300.0, gt=0)
    """From the request to an agent that answers: the scheduling of the pod and the pull of its image included."""
    stop_timeout_s: float = Field(60.0, gt=0)
    """Until the cluster says that a removed pod is gone."""

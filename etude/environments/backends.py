"""Opens the sandbox backend a config names. The one place that knows which backends there are."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from etude.config import Config
from etude.environments import store
from etude.environments.base import Backend
from etude.environments.cluster.config import ClusterConfig
from etude.environments.docker.config import DockerConfig
from etude.environments.firecracker.config import FirecrackerConfig
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.remote import RemoteConfig
from etude.environments.routed import RoutedBackend, RoutedConfig
from etude.errors import MissingDependency, Unreachable

_OF_ISOLATION = {"vm": "qemu", "container": "docker", "namespace": "namespace"}
"""The backend that is meant where a config says only how strong the isolation must be."""
_EXTRAS = {"cluster": "train"}
"""What to install where a backend needs more than the others."""

AWAY_S = 120.0
"""How long `open_when_there` waits."""


def _kind(table: Any) -> str:
    """Which member of the union a table is meant for; namespace where it says neither `kind` nor `isolation`."""
    if not isinstance(table, dict):
        return getattr(table, "kind", "")
    return table.get("kind") or _OF_ISOLATION.get(table.get("isolation", "namespace"), "")


Local = NamespaceConfig | DockerConfig | QemuConfig | FirecrackerConfig

_Namespace = Annotated[NamespaceConfig, Tag("namespace")]
_Docker = Annotated[DockerConfig, Tag("docker")]
_Qemu = Annotated[QemuConfig, Tag("qemu")]
_Firecracker = Annotated[FirecrackerConfig, Tag("firecracker")]
_Remote = Annotated[RemoteConfig, Tag("remote")]
_Cluster = Annotated[ClusterConfig, Tag("cluster")]
_Routed = Annotated[RoutedConfig, Tag("routed")]
LocalConfig = Annotated[_Namespace | _Docker | _Qemu | _Firecracker, Discriminator(_kind)]
"""Backends that make sandboxes themselves, rather than ask a server of ours for them."""
BackendConfig = Annotated[
    _Namespace | _Docker | _Qemu | _Firecracker | _Remote | _Cluster | _Routed, Discriminator(_kind)
]
"""What an `environment` table of a recipe holds: `kind` says which."""


class Sandboxed(Config):
    """What of a recipe says where its sandboxes are."""

    environment: BackendConfig = NamespaceConfig()


def open_backend(config: Local | RemoteConfig | ClusterConfig | RoutedConfig | None = None) -> Backend:
    """Open a backend, or fail saying what this machine lacks; there is no fallback to a weaker one.

    Call it on the thread whose event loop will use it. The caller closes it.
    """
    if isinstance(config, RoutedConfig):
        return RoutedBackend(config, open_backend)
    if isinstance(config, QemuConfig):
        return QemuBackend(config)
    if config is None or isinstance(config, NamespaceConfig):
        return NamespaceBackend(config or NamespaceConfig())
    try:
        return _with_more(config)
    except ImportError as error:
        extra = _EXTRAS.get(config.kind, "environments")
        raise MissingDependency(f"{error.name} is not installed: pip install 'etude[{extra}]'") from None


async def open_when_there(config: BackendConfig) -> Backend:
    """The same for a process of a run that has begun: a server that is away just now, as when it is started anew, is
    waited for. Raises Unreachable after a while, and at once what `open_backend` raises otherwise.
    """
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            return open_backend(config)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)


def sweep(config: BackendConfig) -> None:
    """Remove what dead processes have left of sandboxes of this kind. A server's are its own to sweep."""
    if isinstance(config, NamespaceConfig | QemuConfig | FirecrackerConfig):
        store.sweep(config.state_dir or store.default_state_dir())


def _with_more(config: DockerConfig | FirecrackerConfig | RemoteConfig | ClusterConfig) -> Backend:
    """Those that need what the light installation does not have."""
    if isinstance(config, ClusterConfig):
        from etude.environments.cluster.backend import ClusterBackend

        return ClusterBackend(config)
    if isinstance(config, DockerConfig):
        from etude.environments.docker.backend import DockerBackend

        return DockerBackend(config)
    if isinstance(config, FirecrackerConfig):
        from etude.environments.firecracker.backend import FirecrackerBackend

        return FirecrackerBackend(config)
    from etude.environments.client import RemoteBackend

    return RemoteBackend(config)

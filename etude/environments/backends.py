"""Opens the sandbox backend a config names. The one place that knows which backends there are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from etude.environments.base import Backend
from etude.environments.cluster.config import ClusterConfig
from etude.environments.docker.config import DockerConfig
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.remote import RemoteConfig
from etude.environments.routed import RoutedBackend, RoutedConfig
from etude.errors import MissingDependency

_OF_ISOLATION = {"vm": "qemu", "container": "docker", "namespace": "namespace"}
"""The backend that is meant where a config says only how strong the isolation must be."""


def _kind(table: Any) -> str:
    """Which member of the union a table is meant for; namespace where it says neither `kind` nor `isolation`."""
    if not isinstance(table, dict):
        return getattr(table, "kind", "")
    return table.get("kind") or _OF_ISOLATION.get(table.get("isolation", "namespace"), "")


Local = NamespaceConfig | DockerConfig | QemuConfig

_Namespace = Annotated[NamespaceConfig, Tag("namespace")]
_Docker = Annotated[DockerConfig, Tag("docker")]
_Qemu = Annotated[QemuConfig, Tag("qemu")]
LocalConfig = Annotated[_Namespace | _Docker | _Qemu, Discriminator(_kind)]
"""Backends that make sandboxes on this machine."""
BackendConfig = Annotated[
    _Namespace
    | _Docker
    | _Qemu
    | Annotated[RemoteConfig, Tag("remote")]
    | Annotated[ClusterConfig, Tag("cluster")]
    | Annotated[RoutedConfig, Tag("routed")],
    Discriminator(_kind),
]
"""What an `environment` table of a recipe holds: `kind` says which."""


def open_backend(config: Local | RemoteConfig | ClusterConfig | RoutedConfig | None = None) -> Backend:
    """Open a backend, or fail saying what this machine lacks; there is no fallback to a weaker one.

    Call it on the thread whose event loop will use it. The caller closes it.
    """
    if isinstance(config, RoutedConfig):
        return RoutedBackend(config, open_backend)
    if isinstance(config, RemoteConfig):
        try:
            from etude.environments.client import RemoteBackend
        except ImportError as error:
            raise MissingDependency(f"{error.name} is not installed: pip install 'etude[environments]'") from None
        return RemoteBackend(config)
    if isinstance(config, ClusterConfig):
        try:
            from etude.environments.cluster.backend import ClusterBackend
        except ImportError as error:
            raise MissingDependency(f"{error.name} is not installed: pip install 'etude[train]'") from None
        return ClusterBackend(config)
    if isinstance(config, DockerConfig):
        try:
            from etude.environments.docker.backend import DockerBackend
        except ImportError as error:
            raise MissingDependency(f"{error.name} is not installed: pip install 'etude[environments]'") from None
        return DockerBackend(config)
    if isinstance(config, QemuConfig):
        return QemuBackend(config)
    return NamespaceBackend(config or NamespaceConfig())

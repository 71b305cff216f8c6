"""Opens the sandbox backend a config names. The one place that knows which backends there are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from etude.environments.base import Backend
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.remote import RemoteConfig
from etude.errors import MissingDependency

LocalConfig = NamespaceConfig
"""Backends that make sandboxes on this machine; a union once there is a second one."""


def _kind(table: Any) -> str:
    """Which member of the union a table is meant for; namespace where it does not say."""
    return table.get("kind", "namespace") if isinstance(table, dict) else getattr(table, "kind", "")


BackendConfig = Annotated[
    Annotated[NamespaceConfig, Tag("namespace")] | Annotated[RemoteConfig, Tag("remote")], Discriminator(_kind)
]
"""What an `environment` table of a recipe holds: `kind` says which."""


def open_backend(config: BackendConfig | None = None) -> Backend:
    """Open a backend, or fail saying what this machine lacks; there is no fallback to a weaker one.

    Call it on the thread whose event loop will use it. The caller closes it.
    """
    if isinstance(config, RemoteConfig):
        try:
            from etude.environments.client import RemoteBackend
        except ImportError as error:
            raise MissingDependency(f"{error.name} is not installed: pip install 'etude[environments]'") from None
        return RemoteBackend(config)
    return NamespaceBackend(config or NamespaceConfig())

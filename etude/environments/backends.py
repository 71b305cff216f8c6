"""Opens the sandbox backend a config names. The one place that knows which backends there are."""

from __future__ import annotations

from etude.environments.base import Backend
from etude.environments.namespace import NamespaceBackend, NamespaceConfig

BackendConfig = NamespaceConfig
"""What an `environment` table of a recipe holds. A union once there is a second backend."""


def open_backend(config: BackendConfig | None = None) -> Backend:
    """Open a backend, or fail saying what this machine lacks; there is no fallback to a weaker one.

    Call it on the thread whose event loop will use it. The caller closes it.
    """
    return NamespaceBackend(config or NamespaceConfig())

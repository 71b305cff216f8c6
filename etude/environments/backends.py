"""Finds and opens the sandbox backend that a config names.

Owns the search by name, in the entry-point group `etude.backends` (`environments.plugin`), and the type of a recipe's
`environment` table, which is the union of their configs. Knows none of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from etude.config import Config
from etude.environments.base import Backend
from etude.environments.plugin import BackendTable, Plugin
from etude.errors import MissingDependency, Unreachable
from etude.extras import install_command
from etude.plugins import find, loaded, one_of

PLUGINS: dict[str, Plugin] = loaded("backends", Plugin)
"""Every kind that is installed here and can be loaded."""
LOCAL = {name: plugin for name, plugin in PLUGINS.items() if plugin.probe is not None}
"""Kinds that make sandboxes on this machine, rather than ask a server of ours for them."""
DEFAULT = "namespace"
AWAY_S = 120.0
"""How long `open_when_there` waits."""


def _kind(table: Any) -> str:
    """Which kind a table is meant for, by its `kind` or else its `isolation`."""
    if not isinstance(table, dict):
        return getattr(table, "kind", "")
    wanted = table.get("isolation", DEFAULT)
    return table.get("kind") or next((name for name, plugin in PLUGINS.items() if plugin.meant_by == wanted), "")


if TYPE_CHECKING:
    LocalConfig: TypeAlias = BackendTable
    BackendConfig: TypeAlias = BackendTable
else:
    LocalConfig = one_of("backends", ((name, plugin.config) for name, plugin in LOCAL.items()), _kind)
    BackendConfig = one_of("backends", ((name, plugin.config) for name, plugin in PLUGINS.items()), _kind)
    """What an `environment` table of a recipe holds: `kind` says which."""


def default_config() -> BackendTable:
    """Of the backend that is meant where nothing is said."""
    return find("backends", DEFAULT, Plugin).config()


class Sandboxed(Config):
    """What of a recipe says where its sandboxes are."""

    environment: BackendConfig = default_config()


def plugin_of(config: BackendTable) -> Plugin:
    """The plug-in of a config that one of them has made."""
    return PLUGINS[config.kind]


def open_backend(config: BackendTable | None = None) -> Backend:
    """Open a backend, or fail saying what this machine lacks; there is no fallback to a weaker one.

    Call it on the thread whose event loop will use it. The caller closes it.
    """
    config = default_config() if config is None else config
    plugin = plugin_of(config)
    try:
        return plugin.create_backend(config)
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed: {install_command(plugin.extra)}") from None


async def open_when_there(config: BackendTable) -> Backend:
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


def sweep(config: BackendTable) -> None:
    """Remove what dead processes have left of sandboxes of this kind. A server's are its own to sweep."""
    if (remove := plugin_of(config).sweep) is not None:
        remove(config)

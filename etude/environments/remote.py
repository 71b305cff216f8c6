"""How another machine's sandboxes are reached: the config of the `remote` backend, without the libraries it needs.

Owns `RemoteConfig`, and where a server of this user is found; `client` holds the backend.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from etude.deadlines import Wait
from etude.environments.plugin import BackendTable, Plugin
from etude.host.home import default_home


class RemoteConfig(BackendTable):
    """An environment server, and what to ask of it."""

    kind: Literal["remote"] = "remote"
    url: str = Field(pattern=r"^https?://[^/]+(/.*)?$")
    """Where the server listens."""
    token_file: Path | None = None
    """None: where a server of this user on this machine keeps its own."""
    backend: str | None = None
    """Sandboxes are made on the server's backend of this name; it is an error where there is none. None: any."""
    isolation: Literal["namespace", "container", "vm"] | None = None
    """Sandboxes are made on a backend of this isolation level; it is an error where there is none. None: any."""
    unreachable_s: ClassVar[Wait] = Wait(30.0)
    """How long to go on trying to reach a server that does not answer: one that is started anew is back."""
    busy_s: ClassVar[Wait] = Wait(600.0)
    """How long to come again to a server that says it is busy or restarting: it may be full for minutes."""


def default_state_dir() -> Path:
    """Where a server remembers."""
    return default_home() / "environments"


PLUGIN = Plugin(RemoteConfig, "etude.environments.client:RemoteBackend")

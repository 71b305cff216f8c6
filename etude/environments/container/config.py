"""What is configured alike of all containers, whoever makes them."""

from __future__ import annotations

from typing import ClassVar

from etude.deadlines import Wait
from etude.environments.plugin import BackendTable


class ContainerConfig(BackendTable):
    """The part of a backend's config that every backend of containers has."""

    image: str | None = None
    """The image of sandboxes that name none; it needs /bin/sh. A container cannot show the host's toolchain."""
    uid: ClassVar[int] = 1000
    """Who commands are inside, whatever user the image names: never root."""
    gid: ClassVar[int] = 1000
    env: dict[str, str] = {}
    """Further environment variables of every command."""
    concurrent_starts: ClassVar[int] = 8
    """More at once only wait in the engine."""
    start_timeout_s: ClassVar[Wait] = Wait(60.0)
    """An engine takes a second to start a container, and serves others too."""
    file_timeout_s: ClassVar[Wait] = Wait(60.0)

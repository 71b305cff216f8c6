"""What is configured alike of all containers, whoever makes them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from etude.environments.plugin import BackendTable


class ContainerConfig(BackendTable):
    """The part of a backend's config that every backend of containers has."""

    image: str | None = None
    """The image of sandboxes that name none; it needs /bin/sh. A container cannot show the host's toolchain."""
    uid: int = Field(1000, ge=1)
    """Who commands are inside, whatever user the image names: never root."""
    gid: int = Field(1000, ge=1)
    env: dict[str, str] = {}
    """Further environment variables of every command."""
    cache_dir: Path | None = None
    """Where the built guest program is kept; None: ~/.cache/etude."""
    concurrent_starts: int = Field(8, ge=1)
    start_timeout_s: float = Field(60.0, gt=0)
    file_timeout_s: float = Field(60.0, gt=0)

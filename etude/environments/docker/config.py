"""How containers of a Docker engine are made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config


class DockerConfig(Config):
    """How containers are made; the defaults need an engine on this machine, the right to use it, and an image."""

    kind: Literal["docker"] = "docker"
    isolation: Literal["container"] = "container"
    socket: Path = Path("/var/run/docker.sock")
    """Where the engine listens. Podman offers the same with `podman system service`."""
    image: str | None = None
    """The engine's image for sandboxes that name none; it needs /bin/sh. An engine cannot show the host's toolchain."""
    runtime: str | None = None
    """One of the engine's OCI runtimes, `runsc` say; None: its default."""
    uid: int = Field(1000, ge=1)
    """Who commands are inside, whatever user the image names: never root, which is the host's own."""
    gid: int = Field(1000, ge=1)
    env: dict[str, str] = {}
    """Further environment variables of every command."""
    cache_dir: Path | None = None
    """Where the built guest program is kept, and where the engine must be able to see it; None: ~/.cache/etude."""
    concurrent_starts: int = Field(8, ge=1)
    engine_timeout_s: float = Field(60.0, gt=0)
    """For one answer of the engine."""
    start_timeout_s: float = Field(60.0, gt=0)
    file_timeout_s: float = Field(60.0, gt=0)

"""How containers of a Docker engine are made."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from etude.deadlines import Wait
from etude.environments.container.config import ContainerConfig
from etude.environments.plugin import Plugin


class DockerConfig(ContainerConfig):
    """How containers are made; the defaults need an engine on this machine, the right to use it, and an image.

    The engine must be able to see ~/.cache/etude (XDG_CACHE_HOME moves it), from where it shows the guest program to
    containers."""

    kind: Literal["docker"] = "docker"
    isolation: Literal["container"] = "container"
    socket: Path = Path("/var/run/docker.sock")
    """Where the engine listens. Podman offers the same with `podman system service`."""
    runtime: str | None = None
    """One of the engine's OCI runtimes, `runsc` say; None: its default."""
    engine_timeout_s: ClassVar[Wait] = Wait(60.0)
    """For one answer of the engine."""


PLUGIN = Plugin(
    DockerConfig,
    "etude.environments.docker.backend:DockerBackend",
    "etude.environments.docker.probe:probe",
    meant_by="container",
)

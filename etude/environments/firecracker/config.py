"""How virtual machines are made with Firecracker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from etude.environments.base import Backend
from etude.environments.finding import Finding
from etude.environments.plugin import Plugin
from etude.environments.vm.config import MachineConfig, swept_of_machines


class FirecrackerConfig(MachineConfig):
    """How Firecracker's machines are made; they need its program, root, hardware virtualization, and an image."""

    kind: Literal["firecracker"] = "firecracker"
    program: Path | None = None
    """Firecracker's executable, where every user can reach it; None: the `firecracker` on PATH."""


def _open(config: FirecrackerConfig) -> Backend:
    from etude.environments.firecracker.backend import FirecrackerBackend

    return FirecrackerBackend(config)


def _probe(config: FirecrackerConfig) -> list[Finding]:
    from etude.environments.firecracker.probe import probe

    return probe(config)


PLUGIN = Plugin(FirecrackerConfig, _open, _probe, sweep=swept_of_machines)

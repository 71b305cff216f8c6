"""How virtual machines are made with Firecracker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from etude.environments import store
from etude.environments.plugin import Plugin
from etude.environments.vm.config import MachineConfig


class FirecrackerConfig(MachineConfig):
    """How Firecracker's machines are made; they need its program, root, hardware virtualization, and an image."""

    kind: Literal["firecracker"] = "firecracker"
    program: Path | None = None
    """Firecracker's executable, where every user can reach it; None: the `firecracker` on PATH."""


PLUGIN = Plugin(
    FirecrackerConfig,
    "etude.environments.firecracker.backend:FirecrackerBackend",
    "etude.environments.firecracker.probe:probe",
    sweep=store.sweep_of,
)

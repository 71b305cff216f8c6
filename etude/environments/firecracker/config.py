"""How virtual machines are made with Firecracker."""

from __future__ import annotations

from typing import Literal

from etude.environments import store
from etude.environments.plugin import Plugin
from etude.environments.vm.config import MachineConfig


class FirecrackerConfig(MachineConfig):
    """How Firecracker's machines are made; they need its program on PATH, where every user can reach it, root, hardware
    virtualization, and an image."""

    kind: Literal["firecracker"] = "firecracker"


PLUGIN = Plugin(
    FirecrackerConfig,
    "etude.environments.firecracker.backend:FirecrackerBackend",
    "etude.environments.firecracker.probe:probe",
    sweep=store.sweep_of,
)

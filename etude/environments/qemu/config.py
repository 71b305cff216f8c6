"""How virtual machines are made with QEMU."""

from __future__ import annotations

from typing import Literal

from etude.environments import store
from etude.environments.plugin import Plugin
from etude.environments.vm.config import MachineConfig


class QemuConfig(MachineConfig):
    """How QEMU's machines are made; the defaults need root, a processor with virtualization, and an image."""

    kind: Literal["qemu"] = "qemu"
    accel: Literal["kvm", "tcg"] = "kvm"
    """`tcg` emulates the processor: it runs anywhere, and 10 to 50 times slower. Neither stands in for the other."""

    @property
    def slowness(self) -> float:
        return 1.0 if self.accel == "kvm" else 3.0


PLUGIN = Plugin(
    QemuConfig,
    "etude.environments.qemu.backend:QemuBackend",
    "etude.environments.qemu.probe:probe",
    variants={"qemu-kvm": ("accel=kvm",), "qemu-tcg": ("accel=tcg",)},
    sweep=store.sweep_of,
    meant_by="vm",
)

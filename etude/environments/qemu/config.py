"""How virtual machines are made with QEMU."""

from __future__ import annotations

from typing import Literal

from etude.environments.base import Backend
from etude.environments.finding import Finding
from etude.environments.plugin import Plugin
from etude.environments.vm.config import MachineConfig, swept_of_machines


class QemuConfig(MachineConfig):
    """How QEMU's machines are made; the defaults need root, a processor with virtualization, and an image."""

    kind: Literal["qemu"] = "qemu"
    accel: Literal["kvm", "tcg"] = "kvm"
    """`tcg` emulates the processor: it runs anywhere, and 10 to 50 times slower. Neither stands in for the other."""

    @property
    def slowness(self) -> float:
        return 1.0 if self.accel == "kvm" else 3.0


def _open(config: QemuConfig) -> Backend:
    from etude.environments.qemu.backend import QemuBackend

    return QemuBackend(config)


def _probe(config: QemuConfig) -> list[Finding]:
    from etude.environments.qemu.probe import probe

    return probe(config)


PLUGIN = Plugin(
    QemuConfig,
    _open,
    _probe,
    variants={"qemu-kvm": ("accel=kvm",), "qemu-tcg": ("accel=tcg",)},
    sweep=swept_of_machines,
    meant_by="vm",
)

"""The `qemu` backend: virtual machines on processors with virtualization, or emulated where that is asked for.

Adds to `vm.backend` what QEMU's machines are, and what must be here for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from etude.environments.qemu.config import QemuConfig
from etude.environments.qemu.machine import QemuMachine, clock_hints, find_qemu
from etude.environments.vm.backend import MachineBackend
from etude.environments.vm.machine import MachineShape, need_kvm
from etude.environments.vm.sandbox import Disk


class QemuBackend(MachineBackend):
    """Makes machines with QEMU."""

    def __init__(self, config: QemuConfig | None = None) -> None:
        config = config or QemuConfig()
        find_qemu()
        if config.accel == "kvm":
            need_kvm('accept emulation with accel = "tcg" in the environment config')
        super().__init__(config, "qemu", config.accel)

    def machine(self, number: int, disk: Disk, shape: MachineShape) -> QemuMachine:
        name, log = self.place(number)
        return QemuMachine(name, shape, self.program, disk.fd, log, self.config.file_timeout_s)

    def _hints(self, shape: MachineShape) -> Sequence[str]:
        return clock_hints(self.program, shape.accel)

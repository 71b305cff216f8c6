"""The `firecracker` backend: virtual machines on hardware, as many as fit.

Adds to `vm.backend` what Firecracker's machines are, and what must be here for them: the same images, the same kernel
and the same agent as QEMU's, over vsock. Tested against its published API; not yet run on metal.
"""

from __future__ import annotations

import os
import stat

from etude.environments.firecracker.config import FirecrackerConfig
from etude.environments.firecracker.machine import MOST_CPUS, FirecrackerMachine, find_firecracker
from etude.environments.vm.backend import MachineBackend
from etude.environments.vm.machine import MachineShape, need_kvm
from etude.environments.vm.sandbox import Disk
from etude.errors import ConfigError


class FirecrackerBackend(MachineBackend):
    """Makes machines with Firecracker."""

    def __init__(self, config: FirecrackerConfig | None = None) -> None:
        config = config or FirecrackerConfig()
        self._program = find_firecracker()
        need_kvm('emulate a processor with kind = "qemu" and accel = "tcg" in the environment config')
        super().__init__(config, "firecracker", "kvm")

    def machine(self, number: int, disk: Disk, shape: MachineShape) -> FirecrackerMachine:
        if shape.cpus > MOST_CPUS:
            raise ConfigError(f"cpus: a machine of Firecracker's has at most {MOST_CPUS} processors, not {shape.cpus}")
        _let_others_read(disk.fd)
        name, log = self.place(number)
        directory = log.with_suffix("")
        return FirecrackerMachine(name, shape, self._program, self.program, disk.fd, log, directory)


def _let_others_read(image: int) -> None:
    """A machine opens its image anew, as its own user. By a path nobody else can: see images.store."""
    mode = os.fstat(image).st_mode
    if os.geteuid() == 0 and not mode & stat.S_IROTH:
        os.fchmod(image, stat.S_IMODE(mode) | stat.S_IROTH)

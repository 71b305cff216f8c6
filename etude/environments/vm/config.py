"""What is configured alike of all virtual machines, whatever runs them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from etude.deadlines import Wait, scaled
from etude.environments.plugin import BackendTable
from etude.environments.roots import ImagesConfig


class MachineConfig(BackendTable):
    """The part of a backend's config that every backend of virtual machines has."""

    isolation: Literal["vm"] = "vm"
    image: str | None = None
    """The image of sandboxes that name none: a machine cannot show the host's toolchain."""
    images: ImagesConfig = ImagesConfig()
    env: dict[str, str] = {}
    """Further environment variables of every command."""
    state_dir: Path | None = None
    """A local directory for what machines say when starting; None: /dev/shm/etude-UID."""
    limits: Literal["cgroup", "machine"] = "cgroup"
    """`machine` has no limit on the machine's process: it is still bounded by its memory and its processors."""
    first_uid: ClassVar[int] = 2_000_100_000
    """Machines run as this user of the host and the 9,999 that follow, each as its own, when we are root."""
    warm_up: ClassVar[str] = "python3 -c pass"
    """Run once in each kind of machine, before its memory is copied for all that start from it; may fail."""
    templates: ClassVar[int] = 4
    """How many kinds of machines (image and size) are kept ready; each takes about 100 MiB."""
    concurrent_starts: ClassVar[int] = 4
    """More at once would only share the processors."""
    file_timeout_s: ClassVar[Wait] = Wait(60.0)
    stop_timeout_s: ClassVar[Wait] = Wait(15.0)
    copy_timeout_s: ClassVar[Wait] = Wait(120.0)
    """For copying one machine's memory, to a disk."""

    @property
    def slowness(self) -> float:
        """How much longer than with hardware virtualization a start may take."""
        return 1.0

    @property
    def boot_timeout_s(self) -> float:
        """A guest boots in seconds."""
        return scaled(60.0 * self.slowness)

    @property
    def start_timeout_s(self) -> float:
        """From a copy of a machine's memory: a tenth of a second."""
        return scaled(30.0 * self.slowness)

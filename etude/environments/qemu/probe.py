"""Says whether this machine can run virtual machines, by running one.

Owns the checks of the `qemu` backend. The last boots a real guest under a deadline, on an image with nothing in it, and
starts a second one from its memory: that /dev/kvm can be opened, or even that it runs some code, proves nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from etude.environments.base import Resources, SandboxSpec
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.finding import Finding, look
from etude.environments.images.store import Described, ImagesConfig, ImageStore
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.qemu.kernel import guest_kernel
from etude.environments.qemu.machine import find_qemu
from etude.errors import DeadlineExceeded, EtudeError, SandboxError

_BOOT_DEADLINE_S = 20.0
_WHOLE_DEADLINE_S = 60.0
_KERNEL_NAME = "/proc/sys/kernel/osrelease"
_KVM_ADVICE = (
    "run on hardware, or in a virtual machine whose hypervisor offers nested virtualization, with kvm_intel or kvm_amd "
    'loaded; or accept an emulated processor with accel = "tcg"'
)


def probe(config: QemuConfig) -> list[Finding]:
    """Look at each part, then boot a guest. All `ok` means machines run here. Takes seconds; at most a minute."""
    cache_dir = config.cache_dir or default_cache_dir()
    findings = [
        look("emulator", find_qemu),
        look("guest kernel", lambda: str(guest_kernel(cache_dir, guest_program(cache_dir), config.kernel).image)),
    ]
    if all(finding.ok for finding in findings):
        findings.append(look("a real guest", lambda: asyncio.run(_boot(config))))
    return findings


async def _boot(config: QemuConfig) -> str:
    with tempfile.TemporaryDirectory() as directory:
        nothing = Path(directory) / "nothing"
        nothing.mkdir()
        images = ImagesConfig(dir=Path(directory) / "images")
        ImageStore(images).add_directory(nothing, Described(), name="nothing")
        own = {"image": "nothing", "images": images, "boot_timeout_s": min(config.boot_timeout_s, _BOOT_DEADLINE_S)}
        backend = QemuBackend(config.model_copy(update=own))
        try:
            async with asyncio.timeout(_WHOLE_DEADLINE_S):
                return await _look_inside(backend)
        except TimeoutError:
            raise DeadlineExceeded("a guest to boot and be copied", _WHOLE_DEADLINE_S) from None
        except SandboxError as error:
            advice = _KVM_ADVICE if config.accel == "kvm" else "report this as a bug"
            said = str(error).partition("; `")[0].replace(": ", ", ")  # what stands after a colon is what to do
            raise SandboxError(f"{said}: {advice}") from None
        finally:
            await backend.close()


async def _look_inside(backend: QemuBackend) -> str:
    began = time.perf_counter()
    first = await backend.create(SandboxSpec(resources=Resources(memory_mb=64, disk_mb=16)))
    booted = time.perf_counter()
    (second,) = await first.fork(1)
    forked = time.perf_counter()
    kernel = (await second.read_file(_KERNEL_NAME)).decode().strip()
    if kernel == Path(_KERNEL_NAME).read_text().strip():
        raise EtudeError("the guest runs this machine's own kernel, so it is no guest: report this as a bug")
    return (
        f"Linux {kernel} was ready after {booted - began:.1f} s with accel {backend.config.accel!r}; "
        f"a fork of it after {(forked - booted) * 1e3:.0f} ms"
    )

"""Boots a real guest under a deadline, on an image with nothing in it, and starts a second one from its memory.

That /dev/kvm can be opened, or even that it runs some code, proves nothing. Owns what the probes of all backends of
virtual machines have in common; each adds what it needs beside.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from etude.environments.base import Resources, SandboxSpec
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.images.store import Described, ImageStore
from etude.environments.plugin import Finding, run_check
from etude.environments.roots import ImagesConfig
from etude.environments.vm.backend import MachineBackend
from etude.environments.vm.config import MachineConfig
from etude.environments.vm.kernel import guest_kernel
from etude.errors import DeadlineExceeded, EtudeError, SandboxError

KVM_ADVICE = (
    "run on hardware, or in a virtual machine whose hypervisor offers nested virtualization, with kvm_intel or kvm_amd "
    "loaded"
)
_WHOLE_DEADLINE_S = 60.0
_KERNEL_NAME = "/proc/sys/kernel/osrelease"
_Config = TypeVar("_Config", bound=MachineConfig)


def kernel_finding() -> Finding:
    cache_dir = default_cache_dir()
    return run_check("guest kernel", lambda: str(guest_kernel(cache_dir, guest_program(cache_dir)).image))


def guest_finding(config: _Config, opened: Callable[[_Config], MachineBackend], advice: str) -> Finding:
    """Whether a guest boots and forks on the backend that `opened` makes; `advice` says what to do where not."""
    return run_check("a real guest", lambda: asyncio.run(_boot(config, opened, advice)))


async def _boot(config: _Config, opened: Callable[[_Config], MachineBackend], advice: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        nothing = Path(directory) / "nothing"
        nothing.mkdir()
        images = ImagesConfig(dir=Path(directory) / "images")
        ImageStore(images).add_directory(nothing, Described(), name="nothing")
        own = {"image": "nothing", "images": images}
        backend = opened(config.model_copy(update=own))
        try:
            async with asyncio.timeout(_WHOLE_DEADLINE_S):
                return await _look_inside(backend)
        except TimeoutError:
            raise DeadlineExceeded("a guest to boot and be copied", _WHOLE_DEADLINE_S) from None
        except SandboxError as error:
            said = str(error).partition("; `")[0].replace(": ", ", ")  # what stands after a colon is what to do
            raise SandboxError(f"{said}: {advice}") from None
        finally:
            await backend.close()


async def _look_inside(backend: MachineBackend) -> str:
    began = time.perf_counter()
    first = await backend.create(SandboxSpec(resources=Resources(memory_mb=64, disk_mb=16)))
    booted = time.perf_counter()
    (second,) = await first.fork(1)
    forked = time.perf_counter()
    kernel = (await second.read_file(_KERNEL_NAME)).decode().strip()
    if kernel == Path(_KERNEL_NAME).read_text().strip():
        raise EtudeError("the guest runs this machine's own kernel, so it is no guest: report this as a bug")
    return (
        f"Linux {kernel} was ready after {booted - began:.1f} s with accel {backend.capabilities.accel!r}; "
        f"a fork of it after {(forked - booted) * 1e3:.0f} ms"
    )

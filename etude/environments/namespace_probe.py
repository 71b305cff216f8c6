"""Says in plain words what this machine lacks for the namespace backend.

Owns the checks of its parts. The last one starts a real sandbox under a deadline and looks at it from inside: that the
parts are there proves nothing. Leaves the machine as it was, but for the guest program in its cache: what killed
processes left is told of, and not swept.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from etude.environments import cgroups
from etude.environments.base import SandboxSpec
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.launcher import find_bwrap
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.plugin import Finding, run_check
from etude.environments.roots import open_roots
from etude.environments.store import default_state_dir, new_instance
from etude.errors import DeadlineExceeded, EtudeError

_BOOT_DEADLINE_S = 60.0
_LOOK = (
    "python3 -c 'print(6 * 7)' && ls /sys/class/net /proc/1/root 2>/dev/null; "
    "grep -E 'CapEff|Seccomp:' /proc/self/status"
)
_USERNS_SWITCHES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def probe(config: NamespaceConfig) -> list[Finding]:
    """Look at each part, then start a sandbox. All `ok` means sandboxes run here. Takes seconds."""
    findings = [
        run_check("guest program", lambda: f"built at {guest_program(default_cache_dir())}"),
        run_check("bubblewrap", find_bwrap),
        _overlay(),
        _user_namespaces(),
        run_check("limits", lambda: _limits(config)),
        _room(config.state_dir or default_state_dir()),
        _images(config),
        _left_over(config),
    ]
    findings.append(run_check("a real sandbox", lambda: asyncio.run(_boot(config))))
    return findings


def _overlay() -> Finding:
    if "\toverlay\n" in Path("/proc/filesystems").read_text():
        return Finding("overlayfs", True, "the kernel has it")
    return Finding("overlayfs", False, "the kernel has not loaded it", "modprobe overlay (as root)")


def _user_namespaces() -> Finding:
    for path, forbidding, remedy in _USERNS_SWITCHES:
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue  # this kernel has no such switch
        if value == forbidding:
            return Finding(
                "user namespaces", False, f"{path} is {value}: only root may make them", f"{remedy} (as root)"
            )
    return Finding("user namespaces", True, "allowed")


def _limits(config: NamespaceConfig) -> str:
    if config.limits == "rlimit":
        return "per process only (limits = 'rlimit'): no limit on CPU, none on the sum of a sandbox's memory"
    tree = cgroups.open_tree(new_instance())
    tree.close()
    return f"cgroup v{tree.version}, writable"


def _room(state_dir: Path) -> Finding:
    place = state_dir if state_dir.exists() else state_dir.parent
    try:
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize >> 20
    except OSError as error:
        return Finding("room", False, f"{place}: {error.strerror}", "set state_dir to a directory that exists")
    enough = free >= 256 and os.access(place, os.W_OK)
    remedy = "" if enough else "free some, or set state_dir in the environment config to a larger, writable file system"
    return Finding("room", enough, f"{free} MiB free at {place}", remedy)


def _images(config: NamespaceConfig) -> Finding:
    """Never a fault: sandboxes on the host's own toolchain need none of it."""
    try:
        said = f"can be kept and mounted, in the form {config.images.format!r}"
        with tempfile.TemporaryDirectory(prefix="etude-doctor-") as made:
            _keep_an_image(config, Path(made))
    except EtudeError as error:
        said = f"only 'host' ({error})"
    return Finding("images", True, said)


def _keep_an_image(config: NamespaceConfig, made: Path) -> None:
    for name in ("tree", "mounts"):
        (made / name).mkdir()
    images = config.images.model_copy(update={"dir": made / "images"})
    roots = open_roots(guest_program(default_cache_dir()), made / "mounts", images, ())
    try:
        roots.check(made / "tree")
    finally:
        roots.close()


def _left_over(config: NamespaceConfig) -> Finding:
    """No fault either: the next backend that opens removes it."""
    left = leftovers(config)
    said = "nothing of killed processes"
    if left:
        said = f"{len(left)} things of killed processes ({left[0][:100]}): the next server or run removes them"
    return Finding("left over", True, said)


async def _boot(config: NamespaceConfig) -> str:
    try:
        async with asyncio.timeout(_BOOT_DEADLINE_S):
            return await _look_inside(config)
    except TimeoutError:
        hint = "the machine is very busy, or a program it starts hangs; look at its load"
        raise DeadlineExceeded("a sandbox to start and be looked at", _BOOT_DEADLINE_S, hint) from None


async def _look_inside(config: NamespaceConfig) -> str:
    backend = NamespaceBackend(config, sweep=False)
    try:
        began = time.perf_counter()
        sandbox = await backend.create(SandboxSpec(files={"a": b"x"}))
        took_ms = (time.perf_counter() - began) * 1e3
        seen = (await sandbox.exec(_LOOK, timeout_s=20)).output.decode(errors="replace").split()
    finally:
        await backend.close()
    if seen != ["42", "CapEff:", "0000000000000000", "Seccomp:", "2"]:
        raise EtudeError(f"it starts, but from inside it looks wrong ({' '.join(seen)[:200]}): report this as a bug")
    if left := [line for line in leftovers(config) if backend.store.instance in line]:
        raise EtudeError(f"it leaves something behind ({'; '.join(left)[:300]}): report this as a bug")
    users = "was users of its own" if backend.uids.mapped else "was the same user as all others"
    limits = "without capabilities, its system calls filtered"
    return f"started in {took_ms:.0f} ms, ran python3, {users}, {limits}, left nothing behind"

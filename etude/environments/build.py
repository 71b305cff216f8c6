"""Builds the guest program from its C source, once a source version.

Owns the compiler call and the cache of built programs (keyed by a hash of source, flags and machine). There is one way
to run a guest: a native program. A Python one would cost ten times the CPU of everything else a sandbox does.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from etude.errors import DeadlineExceeded, MissingDependency, SandboxError
from etude.host.home import default_cache

SOURCE = Path(__file__).parent / "guest"
_FLAGS = ("-O2", "-static", "-std=gnu11", "-Wall", "-pthread")
_BUILD_DEADLINE_S = 120.0
default_cache_dir = default_cache
"""Where built programs and guest kernels live."""


def guest_program(cache_dir: Path) -> Path:
    """The path of the built guest, compiling it if this source has not been built yet (about a second).

    Raises MissingDependency when there is no C compiler or no static C library, or no place for it.
    """
    sources = sorted(SOURCE.glob("*.c"))
    digest = hashlib.sha256(" ".join((*_FLAGS, platform.machine())).encode())
    for path in [*sources, *sorted(SOURCE.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    program = cache_dir / f"guest-{digest.hexdigest()[:16]}"
    if not program.exists():
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            said = "it must be a directory that you may write to, or set XDG_CACHE_HOME"
            raise MissingDependency(f"{cache_dir}: {error.strerror}; {said}") from None
        _compile(sources, program)
    return program


def _compile(sources: list[Path], program: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingDependency("no C compiler to build the sandbox's guest with: apt-get install -y gcc libc6-dev")
    partial = program.with_suffix(f".{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(partial), *map(str, sources)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"{compiler} to build the sandbox's guest", _BUILD_DEADLINE_S) from None
    if done.returncode == 0:
        partial.chmod(0o755)  # the sandbox's user runs it, whatever our umask
        partial.replace(program)  # atomic: another process may be building the same
        return
    partial.unlink(missing_ok=True)
    if "cannot find -lc" in done.stderr or "No such file or directory" in done.stderr:
        raise MissingDependency(
            "the C library needed to build the sandbox's guest is missing: apt-get install -y libc6-dev "
            f"(Fedora: dnf install glibc-static). The compiler said: {done.stderr.strip()[-300:]}"
        )
    said = " ".join(done.stderr.split())[-800:]
    raise SandboxError(f"building the sandbox's guest at {program} failed; is there room? {compiler} said: {said}")

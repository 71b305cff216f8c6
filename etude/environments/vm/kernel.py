"""The guest's kernel and its initial file system, made once and kept in the cache by content.

Owns three steps: fetch the distribution's kernel package with its own package manager (nothing is installed), cut the
uncompressed kernel out of its boot image, and pack the modules a guest needs, with the guest program, into an initial
file system. Runs no guest. Blocks, the first time for some seconds: call it on a worker thread.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from etude.environments.vm.cpio import cpio
from etude.errors import DeadlineExceeded, MissingDependency, SandboxError

MODULES = ("virtio_mmio", "virtio_blk", "virtio_console", "vmw_vsock_virtio_transport", "erofs", "overlay")
"""What any of our machines needs: a disk, a line to its agent (QEMU's a serial one, Firecracker's vsock), a root."""
_METAPACKAGE = "linux-image-cloud-amd64"
_FETCH_DEADLINE_S = 300.0
_SETUP_SECTORS, _PAYLOAD = 0x1F1, 0x248
_SECTOR = 512
_MAGIC = {
    b"\x02\x21\x4c\x18": "lz4",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"\x1f\x8b": "gzip",
}
ADVICE = (
    f"run `apt-get update && apt-get download {_METAPACKAGE}` to see why; or put the .deb of a Debian "
    "cloud kernel into ~/.cache/etude (or $XDG_CACHE_HOME/etude)"
)


@dataclass(frozen=True)
class Kernel:
    """What a machine boots from. `digest` names both files' content."""

    image: Path
    """An uncompressed kernel with a PVH entry."""
    initial: Path
    """Its initial file system: the guest program and the modules."""
    digest: str


def guest_kernel(cache_dir: Path, program: Path) -> Kernel:
    """The kernel for guests that run `program`, from the newest package in `cache_dir` or from the one apt offers."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    package = _fetched(cache_dir)
    parts = _unpacked(cache_dir, package)
    digest = hashlib.sha256((parts.name + program.name + " ".join(MODULES)).encode()).hexdigest()[:16]
    initial = cache_dir / f"initial-{digest}"
    if not initial.exists():
        _write(initial, _initial(parts / "modules", program))
    return Kernel(parts / "vmlinux", initial, digest)


def _fetched(cache_dir: Path) -> Path:
    """The newest kernel package in the cache; where there is none, what apt offers."""
    kept = sorted(cache_dir.glob("linux-image-*.deb"), key=os.path.getmtime)
    if kept:
        return kept[-1]
    if shutil.which("apt-get") is None:
        raise MissingDependency(f"no kernel for virtual machines, and no apt-get to fetch one with: {ADVICE}")
    depends = _run(["apt-cache", "depends", "--important", _METAPACKAGE], cache_dir)
    named = re.search(r"Depends: (linux-image-\S+-cloud-\S+)", depends)
    if named is None:
        raise MissingDependency(f"apt knows no {_METAPACKAGE}: {ADVICE}")
    with tempfile.TemporaryDirectory(dir=cache_dir) as place:
        _run(["apt-get", "download", "-qq", named[1]], Path(place))
        found = list(Path(place).glob("*.deb"))
        if not found:
            raise MissingDependency(f"apt-get downloaded no {named[1]}: {ADVICE}")
        return found[0].rename(cache_dir / found[0].name)


def _unpacked(cache_dir: Path, package: Path) -> Path:
    """A directory with `vmlinux` and `modules/`, named after the package's content and what is taken from it."""
    try:
        digest = hashlib.sha256(package.read_bytes() + " ".join(MODULES).encode()).hexdigest()[:16]
    except OSError as error:
        raise MissingDependency(f"kernel: cannot read {package}, {error.strerror}: {ADVICE}") from None
    place = cache_dir / f"kernel-{digest}"
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        tree, parts = Path(scratch) / "tree", Path(scratch) / "parts"
        _run(["dpkg-deb", "-x", str(package), str(tree)], cache_dir)
        (parts / "modules").mkdir(parents=True)
        boot_images = list((tree / "boot").glob("vmlinuz-*"))
        if len(boot_images) != 1:
            raise SandboxError(f"{package} holds {len(boot_images)} kernels, and should hold one")
        _write(parts / "vmlinux", uncompressed_kernel(boot_images[0].read_bytes()))
        for number, module in enumerate(_in_order(tree)):
            name = module.name.split(".")[0]
            content = lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes()
            _write(parts / "modules" / f"{number:02}-{name}.ko", content)
        for path in (parts, parts / "modules"):
            path.chmod(0o755)
        try:
            parts.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster
                raise
    return place


def uncompressed_kernel(boot_image: bytes) -> bytes:
    """The ELF kernel inside a Linux boot image, by the offsets in the image's own header."""
    start = (boot_image[_SETUP_SECTORS] + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", boot_image, _PAYLOAD)
    payload = boot_image[start + offset : start + offset + length]
    form = next((form for magic, form in _MAGIC.items() if payload.startswith(magic)), None)
    if form == "gzip":
        kernel = gzip.decompress(payload)
    elif form == "xz":
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif form is not None:
        kernel = _filter(form, payload)
    else:
        raise SandboxError(f"a kernel compressed in an unknown way (it begins with {payload[:4].hex()})")
    if not kernel.startswith(b"\x7fELF"):
        raise SandboxError("a boot image without a kernel in it: is it for another machine?")
    return kernel


def _filter(program: str, data: bytes) -> bytes:
    """Through lz4 or zstd. The kernel's build appends the length, which they report as trailing garbage."""
    path = shutil.which(program)
    if path is None:
        raise MissingDependency(f"no {program} to unpack the kernel with: apt-get install -y {program}")
    done = subprocess.run([path, "-dc"], input=data[:-4], capture_output=True, timeout=60)
    if not done.stdout:
        raise SandboxError(f"{program} cannot unpack the kernel: {done.stderr.decode(errors='replace')[-300:]}")
    return done.stdout


def _in_order(tree: Path) -> list[Path]:
    """The modules and what they depend on, each after what it needs. One that is not there is part of the kernel."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in tree.rglob("*.ko*")}
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered or name not in files:
            return
        content = files[name].read_bytes()
        content = lzma.decompress(content) if files[name].suffix == ".xz" else content
        said = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in said[1].decode().split(",") if said else ():
            visit(needed.replace("-", "_"))
        ordered.append(name)

    for name in MODULES:
        visit(name)
    return [files[name] for name in ordered]


def _initial(modules: Path, program: Path) -> bytes:
    entries: dict[str, bytes | None] = {"guest": program.read_bytes(), "modules": None, "dev": None}
    entries |= {f"modules/{path.name}": path.read_bytes() for path in sorted(modules.iterdir())}
    return cpio(entries)


def _run(command: list[str], directory: Path) -> str:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_FETCH_DEADLINE_S)
    except FileNotFoundError:
        raise MissingDependency(f"no {command[0]}, which takes a kernel package apart: {ADVICE}") from None
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"`{' '.join(command)}`", _FETCH_DEADLINE_S, ADVICE) from None
    if done.returncode != 0:
        said = done.stderr.strip()[-300:]
        raise MissingDependency(f"no kernel for virtual machines, `{' '.join(command)}` says {said!r}: {ADVICE}")
    return done.stdout


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, and readable to the users machines run as."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise

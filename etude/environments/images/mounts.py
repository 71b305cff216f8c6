"""Mounts that nobody else on the host sees, and that cannot be left behind.

Owns one small process a `Mounts`: it lives in a mount namespace of its own, mounts what it is asked to, and ends, its
mounts with it, when this process closes it or dies in whatever way. Launchers of sandboxes start from that namespace,
so that a hundred sandboxes share one mounted image and its page cache. Needs root.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from etude.errors import ConfigError, DeadlineExceeded, SandboxError

_ANSWER_DEADLINE_S = 30.0
_OPTIONS_MAX = 4000  # the kernel takes one page
_EROFS_ADVICE = {
    "No such device": "this kernel has no erofs (modprobe erofs)",
    "Block device required": "this kernel mounts no erofs files (that takes Linux 6.12 or later)",
    "Invalid argument": "it is no erofs image, or this kernel is too old for it",
}


class Mounts:
    """A private set of mounts. Targets are made below `directory`, and are empty directories to everybody else."""

    def __init__(self, program: Path, directory: Path) -> None:
        if os.geteuid() != 0:
            raise ConfigError("image: only root can mount images; run as root, or use image 'host'")
        self._directory = directory
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [str(program), "hold", str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self._answer(f"mounts below {directory}")

    @property
    def namespace(self) -> str:
        """What a launcher joins."""
        return f"/proc/{self._process.pid}/ns/mnt"

    def erofs(self, image: Path) -> Path:
        """Mount an image file, read-only and without a loop device; returns its directory inside the namespace."""
        if not image.is_file():
            raise ConfigError(f"image: there is no {image}")
        return self._mount("erofs", str(image))

    def overlay(self, lowers: Sequence[Path], upper: Path | None = None) -> Path:
        """Mount directories over each other, highest first; what is written lands in `upper`, whose work directory is
        `upper` with `.work` added. Paths are shortened, as seen from `directory`, to fit
        the kernel's limit."""
        options = "index=off,metacopy=off,redirect_dir=off,lowerdir=" + ":".join(map(self._name, lowers))
        if upper is not None:
            options += f",upperdir={self._name(upper)},workdir={self._name(upper)}.work"
        if len(options) > _OPTIONS_MAX:
            raise SandboxError(f"{len(lowers)} layers are more than one overlay can take; join some of the steps")
        return self._mount("overlay", options)

    def seen(self, target: Path) -> Path:
        """Where this process reaches a mounted directory. Its symlinks must not be followed: they lead outside."""
        return Path(f"/proc/{self._process.pid}/root{target}")

    def gone(self, target: Path) -> None:
        self._ask("gone", str(target))
        target.rmdir()

    def close(self) -> None:
        """End the process. Sandboxes that started from its mounts keep what they use."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(_ANSWER_DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise DeadlineExceeded("the image mounts to be given up", _ANSWER_DEADLINE_S) from None
            self._process.stdout.close()

    def _name(self, path: Path) -> str:
        name = min(str(path), os.path.relpath(path, self._directory), key=len)
        if set(name) & set(":,\\\t\n"):
            raise ConfigError(f"image: {path} has a character in it that an overlay's options cannot hold; move it")
        return name

    def _mount(self, kind: str, what: str) -> Path:
        target = self._directory / f"mount-{next(self._numbers)}"
        target.mkdir()
        try:
            self._ask(kind, what, str(target))
        except SandboxError:
            target.rmdir()
            raise
        return target

    def _ask(self, *fields: str) -> None:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(("\t".join(fields) + "\n").encode())
            self._process.stdin.flush()
            self._answer(" ".join(fields))

    def _answer(self, what: str) -> None:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], _ANSWER_DEADLINE_S)[0]:
            raise DeadlineExceeded(what, _ANSWER_DEADLINE_S)
        said = out.readline().decode().strip()
        if said == "ok":
            return
        advice = _EROFS_ADVICE.get(said, "") if what.startswith("erofs ") else ""
        if advice:
            advice += '; or set images.format = "directory" and add the image again'
        raise SandboxError(f"cannot mount {what}: {said or 'the process that holds mounts ended'}. {advice}".strip())

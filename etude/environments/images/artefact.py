"""The one form an image takes on disk: an erofs file (or, where the config says so, a plain directory).

Owns the call of mkfs.erofs. The same tree gives the same bytes: times and the file system's own id are fixed, extended
attributes left out, owners and modes as recorded. Uncompressed, since namespaces and VMs read it in place.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from etude.environments.trees import copy_upper
from etude.errors import DeadlineExceeded, MissingDependency, SandboxError

_FIXED = ("--quiet", "-T0", "-U", "00000000-0000-0000-0000-000000000000", "-x-1")

_SEEN = re.compile(r"/proc/(\d+)/root(/.+)")
"""What `Mounts.seen` gives."""


def write_erofs(tree: Path, target: Path, deadline_s: float) -> None:
    """Write the tree into an erofs file at `target`."""
    program = shutil.which("mkfs.erofs")
    if program is None:
        raise MissingDependency("no mkfs.erofs to make images with: apt-get install -y erofs-utils")
    enter: list[str] = []
    if match := _SEEN.fullmatch(str(tree)):
        # mkfs.erofs asks for the real path of the tree, which leads out of the other process's mounts: it goes there
        enter, tree = ["nsenter", f"--mount=/proc/{match[1]}/ns/mnt", "--"], Path(match[2])
    try:
        command = [*enter, program, *_FIXED, str(target), str(tree)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"mkfs.erofs to write {target.name}", deadline_s) from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[-500:]
        raise SandboxError(f"mkfs.erofs failed on {tree}, for {target}: {said}; is there room?")


def write_directory(tree: Path, target: Path, _deadline_s: float) -> None:
    """Copy the tree to `target`, owners and modes as they are."""
    copy_upper(tree, target)

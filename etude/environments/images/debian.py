"""Images of Debian, made by mmdebstrap from a suite and a list of packages.

Owns its call. Mirrors are the ones apt of this host is configured for; none is named here. The same packages give the
same image: times are fixed, and what of the host mmdebstrap leaves inside is taken out. Pin a package as NAME=VERSION.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Literal

from etude.environments.images.root import DEFAULT_PATH
from etude.environments.images.store import Described, Image, ImageStore
from etude.errors import ConfigError, DeadlineExceeded, MissingDependency, SandboxError

Variant = Literal["minbase", "essential", "apt", "important", "standard", "extract"]
_OF_THE_HOST = ("etc/resolv.conf", "etc/hostname")
_APT_DEADLINE_S = 30.0


def add_debian(
    store: ImageStore,
    suite: str,
    packages: Sequence[str] = (),
    *,
    variant: Variant = "minbase",
    name: str | None = None,
    timeout_s: float = 1800.0,
) -> Image:
    """Add a Debian of this suite with these packages beside those of the variant (`extract`: unpacked and no more)."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise MissingDependency("no mmdebstrap to make Debian images with: apt-get install -y mmdebstrap")
    for word in (suite, *packages):
        if not word or word.startswith("-") or set(word) & set(", \n\t"):
            raise ConfigError(f"{word!r}: neither a suite nor a package")
    sources = apt_sources(suite)
    with store.writing(), store.new() as partial:
        tree = partial / "tree"
        include = [f"--include={','.join(packages)}"] if packages else []
        # in mounts of its own, so that nothing it mounts outlives it, however it ends
        command = ["unshare", "--mount", "--propagation", "private", program, "--quiet", "--mode=root"]
        command += [f"--variant={variant}", *include, "--format=directory", suite, str(tree), "-"]
        _run(command, "\n".join(sources) + "\n", timeout_s)
        for path in _OF_THE_HOST:
            (tree / path).unlink(missing_ok=True)
        return store.keep_tree(tree, Described(env=(("PATH", DEFAULT_PATH),)), name)


def apt_sources(suite: str) -> list[str]:
    """Lines of a sources.list for a suite, from apt's configuration: its own, or else the suite on the same mirror."""
    if shutil.which("apt-get") is None:
        raise MissingDependency("no apt to take a Debian mirror from; add a directory or an OCI layout instead")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=_APT_DEADLINE_S).stdout
    entries = [line.split() for line in said.splitlines() if len(line.split()) == 3]
    own = [entry for entry in entries if entry[1] == suite or entry[1].startswith((f"{suite}-", f"{suite}/"))]
    main = [[uri, suite, component] for uri, release, component in entries if not set(release) & set("-/")]
    if not own and not main:
        raise ConfigError("apt is configured for no Debian mirror: see /etc/apt/sources.list, then apt-get update")
    return [f"deb {' '.join(entry)}" for entry in own or main]


def _run(command: list[str], sources: str, timeout_s: float) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(sources.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded("mmdebstrap to make an image", timeout_s) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        raise SandboxError(f"mmdebstrap failed: {said.decode(errors='replace').strip()[-800:]}")

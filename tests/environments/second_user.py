"""Sandboxes of another user of this machine: real ones, of a real process of his, alive or killed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from etude.environments.build import default_cache_dir, guest_program

SOURCE = Path(__file__).parents[2]

OPEN = """
import asyncio, sys
from pathlib import Path
from etude.environments.base import SandboxSpec
from etude.environments.leftovers import leftovers
from etude.environments.namespace import NamespaceBackend, NamespaceConfig

config = NamespaceConfig(state_dir=Path(sys.argv[1]), limits=sys.argv[2])
"""
HOLDING = (
    OPEN
    + """
async def main():
    backend = NamespaceBackend(config)
    box = await backend.create(SandboxSpec(files={"a": b"1"}))
    await box.exec("(setsid sleep 600 &)")
    print(backend.store.instance, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):  # asked whether it lives
        print((await box.exec("cat a")).output.decode(), flush=True)
    await backend.close()

asyncio.run(main())
"""
)
PASSING = (
    OPEN
    + """
async def main():
    backend = NamespaceBackend(config)
    box = await backend.create(SandboxSpec())
    print((await box.exec("echo works")).output.decode(), flush=True)
    await backend.close()

asyncio.run(main())
assert leftovers(config) == [], leftovers(config)
"""
)


class User:
    """One user of this machine, with directories of his own below `home`."""

    def __init__(self, uid: int, home: Path, limits: str):
        self.uid, self.state, self.limits = uid, home / f"state-{uid}", limits
        self._python = python_for(uid)
        self.state.mkdir(mode=0o711)
        os.chown(self.state, uid, uid)
        self._cache = home / "cache"  # of what is already built
        (self._cache / "etude").mkdir(parents=True, exist_ok=True)
        shutil.copy(guest_program(default_cache_dir()), self._cache / "etude")

    def start(self, code: str, groups: tuple[Path, ...] = ()) -> subprocess.Popen[str]:
        """A process of his, in the control groups `groups`, which must be his."""
        packages = Path(pydantic.__file__).parents[1]

        def join():
            for group in groups:
                (group / "cgroup.procs").write_text("0")

        return subprocess.Popen(
            [self._python, "-B", "-c", code, str(self.state), self.limits],
            env={
                "PYTHONPATH": f"{SOURCE}:{packages}",
                "PATH": os.environ["PATH"],
                "HOME": str(self._cache),
                "XDG_CACHE_HOME": str(self._cache),
            },
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            preexec_fn=join,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hold(self, groups=()):
        """A sandbox of his that lives until `Held.kill` or `Held.end`."""
        return Held(self.start(HOLDING, groups))

    def passes(self, groups=()):
        """He opens a backend, runs a command in a sandbox, and nothing of his is left."""
        process = self.start(PASSING, groups)
        said, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint
        assert said.strip() == "works"


class Held:
    """A process that holds one sandbox."""

    def __init__(self, process: subprocess.Popen[str]):
        self.process = process
        self.instance = process.stdout.readline().strip()
        assert self.instance, process.communicate(timeout=60)[1]

    def lives(self) -> bool:
        self.process.stdin.write("?\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip() == "1"

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=60)
        return self.instance

    def end(self):
        assert self.process.communicate(timeout=60)[1] == ""
        assert self.process.returncode == 0


def python_for(uid: int) -> str:
    """An interpreter of this version that he may run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, shutil.which(version, path="/usr/bin")):
        if path is not None and _runs(path, uid):
            return path
    pytest.skip(f"no {version} that user {uid} may run")


def _runs(python: str, uid: int) -> bool:
    try:
        return subprocess.run([python, "-c", ""], user=uid, group=uid, cwd="/", timeout=30).returncode == 0
    except PermissionError:
        return False

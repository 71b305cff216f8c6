"""Other ways to make and use a sandbox, for benchmarks/environments.py: a bare `unshare`, and gVisor.

Owns their command lines. Every wait has a deadline, and what was made is the caller's to destroy.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any, Protocol

from etude.errors import DeadlineExceeded, EtudeError

DEADLINE_S = 60.0


class Peer(Protocol):
    """Another way to do the same work. `create` returns what the other two take."""

    def create(self) -> Any: ...

    def exec(self, made: Any) -> None: ...

    def destroy(self, made: Any) -> None: ...


class Unshare:
    """New namespaces around a shell that reads commands."""

    def __init__(self) -> None:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        kinds = ["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup"]
        self._command = ["unshare", *user, *kinds, "--fork", "--kill-child", "--mount-proc", "sh"]

    def create(self) -> subprocess.Popen[bytes]:
        shell = subprocess.Popen(self._command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._say(shell, b"echo\n")
        return shell

    def exec(self, made: subprocess.Popen[bytes]) -> None:
        self._say(made, b"sh -c :; echo\n")

    def destroy(self, made: subprocess.Popen[bytes]) -> None:
        made.communicate(timeout=DEADLINE_S)

    def _say(self, shell: subprocess.Popen[bytes], line: bytes) -> None:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(line)
        if not select.select([shell.stdout], [], [], DEADLINE_S)[0]:
            raise DeadlineExceeded("a shell in new namespaces to answer", DEADLINE_S)
        if shell.stdout.read(1) != b"\n":
            raise EtudeError(f"unshare cannot make the namespaces here (exit status {shell.wait(DEADLINE_S)})")


class Gvisor:
    """A container of runsc on the host's /usr."""

    def __init__(self, directory: Path) -> None:
        self._runsc = ["runsc", "--root", str(directory / "state"), "--platform=ptrace", "--network=none"]
        self._runsc.append("--ignore-cgroups")
        self._bundle, self._log, self._made = directory / "bundle", directory / "log", 0
        root = self._bundle / "rootfs"
        for point in ("usr", "proc", "tmp"):
            (root / point).mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        mounts = [
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
            {"destination": "/proc", "type": "proc", "source": "proc"},
        ]
        process = {"args": ["/bin/sleep", "1000000"], "cwd": "/", "env": ["PATH=/usr/bin:/bin"], "user": {}}
        spec = {"ociVersion": "1.0.0", "process": process, "mounts": mounts, "root": {"path": "rootfs"}}
        (self._bundle / "config.json").write_text(json.dumps(spec))

    def create(self) -> str:
        self._made += 1
        self._run("run", "--detach", "--bundle", str(self._bundle), name := f"etude-{os.getpid()}-{self._made}")
        return name

    def exec(self, made: str) -> None:
        self._run("exec", made, "/bin/sh", "-c", ":")

    def destroy(self, made: str) -> None:
        self._run("delete", "--force", made)

    def _run(self, *arguments: str) -> None:
        with self._log.open("wb") as log:  # not a pipe: the container would keep it open
            done = subprocess.run(
                [*self._runsc, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=DEADLINE_S
            )
        if done.returncode:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise EtudeError(f"runsc {arguments[0]} failed: {said[-1] if said else 'it said nothing'}")

"""Processes of a run that tests kill: found by what they are, below the command that was started."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil
from small import ROOT, command, steps, variables

ACTORS = {
    "trainer": "TrainerActor", "rank": "RankActor", "engine": "EngineActor", "sessions": "SessionWorker",
    "rewards": "RewardWorker",
}  # fmt: skip

RESTARTS = ("faults.restarts=1000",)
"""A recipe that bears what tests do to it."""


class Victim:
    """A run in processes of its own, started as a user starts it; `prefix` stands before its command line,
    `root` has the package that it runs."""

    def __init__(self, out, *overrides, resume=False, prefix=(), root=ROOT, recipe="quickstart"):
        self.out, self.root, self.mark = out, root, secrets.token_hex(8)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads fills up)
        self.started = subprocess.Popen(
            [*prefix, *command(out, *overrides, resume=resume, recipe=recipe)], cwd=root,
            env=variables(PYTHONPATH=str(root), ETUDE_TEST_RUN=self.mark),
            stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """What is still there is ended: the command takes all below it along."""
        self.started.kill()
        self.started.wait()

    def processes(self, kind: str) -> list[psutil.Process]:
        """Of one kind, the oldest first."""
        if kind == "controller":
            return self.controllers()
        found = []
        for process in psutil.Process(self.started.pid).children(recursive=True):
            try:
                if ACTORS[kind] in " ".join(process.cmdline()[:2]):
                    found.append((process.create_time(), process))
            except psutil.Error:
                continue  # it ended while we looked
        return [process for _, process in sorted(found, key=lambda pair: pair[0])]

    def controllers(self) -> list[psutil.Process]:
        """The process below the supervisor, where it lives; what a dead one left is below the supervisor, too."""
        found = []
        for process in psutil.Process(self.started.pid).children():
            try:
                if "--unsupervised" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill(self, kind: str, number: int = signal.SIGKILL) -> int:
        """Send the first process of a kind a signal, as soon as there is one; returns its pid."""
        pid = self.wait(lambda: self.processes(kind), f"a process of {kind}")[0].pid
        os.kill(pid, number)
        return pid

    def kill_all(self) -> None:
        """kill -9 for everything that the command has started, Ray's own processes too."""
        while found := [process for process in psutil.process_iter() if self._is_ours(process)]:
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, 10)
        self.started.wait()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get("ETUDE_TEST_RUN") == self.mark
        except psutil.Error:
            return False

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`etude runs` with these words, as an operator asks a running job."""
        line = [sys.executable, "-m", "etude.cli.main", "runs", words[0], str(self.out), *words[1:]]
        return subprocess.run(
            line, cwd=self.root, env=variables(PYTHONPATH=str(self.root)), capture_output=True, text=True, timeout=400
        )

    def last_step(self) -> None:
        """Let it end by itself, soon."""

        def taken() -> bool:
            return self.ask("set", f"rollouts.max_steps={len(steps(self.out)) + 4}").returncode == 0

        self.wait(taken, "the run to take a change", every_s=0.5)  # its controller may be starting anew

    def over(self) -> bool:
        return self.started.poll() is not None

    def wait(self, until: Callable[[], object], what: str, seconds: float = 400.0, every_s: float = 0.02) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := until()):
            assert self.started.poll() is None, f"the run ended before {what}: {self.said()[-3000:]}"
            assert time.monotonic() < deadline, f"{what} within {seconds:.0f} s"
            time.sleep(every_s)
        return found

    def end(self, seconds: float = 400.0) -> str:
        """Wait for the run to end by itself; returns what it printed."""
        stdout, _ = self.started.communicate(timeout=seconds)
        assert self.started.returncode == 0, self.said()[-3000:]
        return stdout

    def said(self) -> str:
        """What it has printed to stderr so far."""
        self.errors.seek(0)
        return self.errors.read()

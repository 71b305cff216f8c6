"""Sinks of a run that goes on: a process for each, which follows the files that the run writes.

Owns `Beside`. A sink's library may wait for a network, print, end by a signal or never come back: the run notices none
of it. What a process says is in `sinks/NAME.log`; that it failed is said once, on stderr and as a line of kind `sink`
in metrics.jsonl. A run that is killed takes the processes with it, and its next life starts them again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from etude.bench.sinks.base import open_sink
from etude.bench.sinks.export import FINISH_S, FOLDER
from etude.deadlines import scaled
from etude.plain import say
from etude.rollouts.lines import append
from etude.rollouts.supervisor import command_of


def sinks_of(directory: Path, asked: Sequence[str], resume: bool = False) -> list[str]:
    """Those that are asked for; else, of a run that goes on, those of its earlier lives. Raises as `open_sink` does."""
    before = (directory / FOLDER).glob("*.json") if resume else ()
    names = sorted({*asked} or {path.stem for path in before})
    for name in names:
        open_sink(name)
    return names


class Beside:
    """The processes of the sinks, for as long as it is entered (`with`)."""

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        self.directory, self.names = directory, names
        self._overdue = False
        self._following: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def __enter__(self) -> Beside:
        for name in self.names:
            try:
                process = self._started(name)
            except OSError as error:
                self._failed(name, str(error))
                continue
            waiting = threading.Thread(target=self._wait, args=(name, process), daemon=True)
            waiting.start()
            self._following.append((process, waiting))
        return self

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        log = self.directory / FOLDER / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        command = command_of(["runs", "export", str(self.directory), "--to", name, "--follow"])
        with log.open("ab") as said:  # a session of its own: Ctrl-C is for the run, which says when it is over
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
            )  # fmt: skip

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if code := process.wait():
            log = self.directory / FOLDER / f"{name}.log"
            said = log.read_text(errors="replace").strip().splitlines()
            late = f"it took more than {scaled(FINISH_S):.0f} s to end" if self._overdue else ""
            self._failed(name, late or (said[-1] if said and code > 0 else f"exit code {code}"))

    def _failed(self, name: str, why: str) -> None:
        append(self.directory / "metrics.jsonl", {"kind": "sink", "name": name, "failed": why})
        again = f"etude runs export {self.directory} --to {name}"
        say(f"{name} gets no more figures ({why}); the run goes on, and `{again}` tells it the rest", sys.stderr)

    def __exit__(self, *_: object) -> None:
        """The run is over, well or not: let them finish, within a time."""
        end = time.monotonic() + scaled(FINISH_S)
        for process, _waiting in self._following:
            assert process.stdin is not None
            process.stdin.close()
        for process, waiting in self._following:
            waiting.join(max(0.0, end - time.monotonic()))
            if waiting.is_alive():
                self._overdue = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                waiting.join()

"""The process above a run: starts the controller, and starts it again with `--resume` when it dies.

Owns the controller's process and all that it leaves behind: as the reaper of its descendants this process inherits
whatever a dead controller had started (Ray's processes, sandboxes), and ends it before the next life begins; what
sandboxes leave on disk is swept when the next life opens its backend, or by the command after the last. Beside the run
there may be one process more (`Companion`), which goes on through all its lives and ends with the last; that it dies is
no matter for the run. A controller that does not answer on its socket for `faults.Patience.ping_s` is killed. An error
that the controller can name is its last word, and so is the user's Ctrl-C; only a death by signal or by a bug is
answered with a new life, as often as `[faults]` allows. A controller that was asked to stop, and does not, is killed
too: after a while, or when the user asks again. It may be in a call into Ray that no signal reaches. Small on purpose:
loads neither torch nor Ray, and has one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError, Exit, Interrupted, stopped_by
from etude.plain import say
from etude.rollouts.faults import BUSY, Restarts
from etude.rollouts.live import SOCKET, ask
from etude.rollouts.processes import runnable

CRASHED = Exit.CRASHED
"""The exit code of a controller that met a bug of its own, told from those of errors it can name."""
_SUBREAPER, _DIE_WITH_PARENT = 36, 1  # of prctl(2)
_SENT_BY_A_PROCESS = 0  # si_code of kill(2); a terminal's Ctrl-C reaches the controller without us
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CLEAN_S, _ASK_S, _END_S = 30.0, 1.0, 10.0
COMPANION_LIVES = 5
"""What dies as often is left dead: it is there to look, and nothing depends on it."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class Companion:
    """A process beside the run, started anew a few times where it dies. What it prints goes to stderr."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = list(command)
        self.pid = 0
        """0: there is none."""
        self._lives = COMPANION_LIVES if command else 0

    def start(self, mask: set[int]) -> None:
        """Does nothing while it lives, after the last of its lives, or where its program cannot be started."""
        if self.pid or self._lives <= 0:
            return
        self._lives -= 1

        def child() -> None:
            _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.setsid()  # a Ctrl-C is for the run, which is watched until it has ended

        with contextlib.suppress(OSError):
            started = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=child)
            self.pid, started.returncode = started.pid, 0  # it is reaped here, as all others are

    def family(self) -> set[int]:
        """It, and what it has started."""
        if not self.pid:
            return set()
        process = psutil.Process(self.pid)  # there, at least as what is left of it: nobody else reaps it
        return {self.pid, *(each.pid for each in process.children(recursive=True))}

    def end(self) -> None:
        """Ask it to end, and make it, where it takes too long."""
        self._lives = 0
        deadline = time.monotonic() + scaled(_END_S)
        while self.pid:
            os.kill(self.pid, signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM)
            time.sleep(0.05)
            self.told(_reaped())

    def told(self, ended: Mapping[int, int]) -> None:
        """Of the processes that have ended."""
        if self.pid in ended:
            self.pid = 0


class Supervisor:
    """Runs `command` until it ends by itself; `resume` is added to its later lives once `begun` exists."""

    def __init__(
        self,
        command: Sequence[str],
        resume: str,
        begun: Path,
        restarts: Restarts,
        companion: Sequence[str] = (),
    ) -> None:
        """`companion` is a command that goes on beside the run; none where it is empty."""
        self.command, self.resume, self.begun, self.restarts = list(command), resume, begun, restarts
        self.companion = Companion(companion)
        self.hung = self.opened = False
        self.missed = 0
        self.stopped: int | None = None
        """The signal by which the user has asked it to stop."""
        self.asked_at, self.cut = 0.0, ""
        """When that was; and why it was not waited for."""

    def run(self) -> int:
        """Returns the exit code of the controller's last life. Raises RestartBudgetSpent, DeadlineExceeded, and
        Interrupted where it had to be killed for it to stop.
        """
        _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
        self.companion.start(before)
        try:
            later = False
            while True:
                code = self._life(before, later)
                later = True
                self._clean()
                if self.cut:
                    raise self._interrupted()
                if not self._again(code):
                    return code if code >= 0 else 128 - code
                why = "it did not answer any more" if self.hung else _said(code)
                self.hung, self.missed = False, 0
                pause_s = self.restarts.spend("controller", why)
                say(f"etude: the controller has ended ({why}); it starts anew", sys.stderr)
                self._rest(pause_s)
        finally:
            self.companion.end()
            for number in _FORWARDED if self.stopped is not None else ():
                signal.signal(number, signal.SIG_IGN)  # the controller has had the last word; what still waits is late
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _again(self, code: int) -> bool:
        """A user who asked it to stop does not see it start anew, however it ended."""
        return (code < 0 or code == CRASHED) and self.stopped is None

    def _life(self, mask: set[int], later: bool) -> int:
        """One life of the controller, from its start to its exit code: negative for the signal that ended it."""
        further = [self.resume] if later and self.begun.exists() and self.resume not in self.command else []

        def child() -> None:
            _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        controller = subprocess.Popen([*self.command, *further], preexec_fn=child)
        self.opened = False
        while True:
            ended = _reaped()
            self.companion.told(ended)
            if controller.pid in ended:
                controller.returncode = code = ended[controller.pid]
                return code
            self.companion.start(mask)
            told = signal.sigtimedwait({*_FORWARDED, signal.SIGCHLD}, self.restarts.ping_every_s)
            if told is None and self._hangs(controller.pid):
                os.kill(controller.pid, signal.SIGKILL)
            if told is not None and told.si_signo != signal.SIGCHLD:
                self._asked(told, controller.pid)
            if self.stopped is not None and not self.cut:
                self._cut(controller.pid)

    def _asked(self, told: signal.struct_siginfo, pid: int) -> None:
        """The user's signal reaches the controller; a second one, that is no echo of the first, ends it."""
        now = time.monotonic()
        if self.stopped is None:
            self.stopped, self.asked_at = told.si_signo, now
        elif now - self.asked_at > self.restarts.again_s and not self.cut:
            self._end(pid, "you asked a second time")
        if told.si_code == _SENT_BY_A_PROCESS:
            os.kill(pid, told.si_signo)

    def _cut(self, pid: int) -> None:
        """End a controller that has had its time to stop."""
        patience_s = self.restarts.stop_s if self.opened else self.restarts.stop_early_s
        if time.monotonic() - self.asked_at > patience_s:
            self._end(pid, f"it had not stopped {patience_s:.0f} s after you asked it to")

    def _end(self, pid: int, why: str) -> None:
        self.cut = why
        os.kill(pid, signal.SIGKILL)

    def _interrupted(self) -> Interrupted:
        what = "what is saved stays so: go on with --resume" if self.begun.exists() else "nothing had begun"
        return stopped_by(self.stopped or signal.SIGINT, f"ended at once, as {self.cut}; {what}")

    def _hangs(self, pid: int) -> bool:
        """Look at it once. It is asked from when it has opened its socket; what is counted is how often it did not
        answer, and not the time, which goes on while all of us are stopped.
        """
        directory = self.begun.parent
        if not (directory / SOCKET).exists():
            return False
        try:
            ask(directory, {"command": "ping"}, _ASK_S)
        except DeadlineExceeded:
            self.missed += 1
        except EtudeError:
            return False  # it is not there yet, or not any more
        else:
            self.missed, self.opened = 0, True
        patience_s = self.restarts.ping_s * (BUSY if runnable(pid) else 1)
        self.hung = self.missed * (self.restarts.ping_every_s + _ASK_S) > patience_s
        return self.hung

    def _clean(self) -> None:
        """End all that a controller has left running, and wait until it is gone; one that ended well leaves nothing."""
        deadline = time.monotonic() + scaled(_CLEAN_S)
        while left := self._left():
            for process in left:
                try:
                    process.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            self.companion.told(_reaped())
            if time.monotonic() > deadline:
                names = ", ".join(sorted({process.name() for process in left if process.is_running()}))
                raise DeadlineExceeded(f"what a dead controller has left to end ({names})", scaled(_CLEAN_S))
            time.sleep(0.02)

    def _left(self) -> list[psutil.Process]:
        spared = self.companion.family()
        return [each for each in psutil.Process().children(recursive=True) if each.pid not in spared]

    def _rest(self, seconds: float) -> None:
        """Wait before the next life; a user need not."""
        signal.sigtimedwait(_FORWARDED, seconds)


def _reaped() -> dict[int, int]:
    """Reap every child that has ended: their exit codes."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def _said(code: int) -> str:
    if code == CRASHED:
        return "a bug of its own; what it said is above"
    return f"signal {-code} ({signal.strsignal(-code) or 'unknown'})"


def command_of(arguments: Sequence[str]) -> list[str]:
    """The command line of `etude` with these arguments, in this interpreter."""
    return [sys.executable, "-m", "etude.cli.main", *arguments]

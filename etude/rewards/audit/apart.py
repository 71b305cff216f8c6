"""Audits in processes of their own: what a session left behind can make one slow, large or dead, and nothing else.

    task, events, files ──pickle──► worker ──JSON──► Report

Owns `Auditor`, whose worker lives as long as it is asked and is started anew when it is gone, and the worker's loop. An
audit that spends its processor time or its memory, or dies, is tried once more, in a new process and with more time.
What fails again is *unaudited*, and so is what nobody can read in the first place (`reading_limit`): a report without
findings that says why. That is the doing of whoever left it, as a slow machine takes nobody's processor time; what it
costs, `rewards.reward` decides. A worker that cannot be started, or gets no processor, is our failure (SandboxError).
Nothing that a session left is run, and of the worker nothing but JSON is read.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import BinaryIO

from etude.environments.base import WORKSPACE
from etude.errors import SandboxError
from etude.host.processes import start_process
from etude.records import Event, Task
from etude.rewards.audit import audit
from etude.rewards.audit.findings import Finding, Report
from etude.rewards.audit.state import FILE_MAX, Workspace, given_workspace

CPU_S = (6, 20)
"""Of the first and the second try. A megabyte of Python takes about one second."""
WAIT_S = 150.0
"""For a worker to start, and for an answer: far longer than the processor time it may take."""
AGAIN = 4
"""Second tries at once: those who make an audit slow wait for each other, and nobody else for them."""
PYTHON_MAX = 2 << 20
"""Bytes of Python that a session may leave new or changed."""
BYTES_MAX = 64 << 20
"""Bytes of all it may leave new or changed."""
MEMORY_MAX = 4 << 30
_HEAD = 8
_READY = b"ready\n"


class Auditor:
    """Audits one after the other. Belongs to the event loop it is used on; `close` ends its worker."""

    def __init__(self, cpu_s: tuple[int, int] = CPU_S, wait_s: float = WAIT_S) -> None:
        self.cpu_s, self.wait_s = cpu_s, wait_s
        self.failed = 0
        """Tries that came to no report."""
        self._worker: Process | None = None
        self._first, self._again = asyncio.Lock(), asyncio.Semaphore(AGAIN)

    async def audit(self, task: Task, events: Sequence[Event], after: Workspace) -> Report:
        """Raises SandboxError where the machine is at fault. Cancelling it is safe."""
        if why := reading_limit(task, after):
            return Report((), unaudited=why)
        async with self._first:
            found = await self._tried(_question(self.cpu_s[0], task, events, after))
        if isinstance(found, str):
            async with self._again:
                second = Auditor(self.cpu_s, self.wait_s)
                try:
                    found = await second._tried(_question(self.cpu_s[1], task, events, after))
                finally:
                    await second.close()
                    self.failed += 1 + isinstance(found, str)
        return Report((), unaudited=f"the audit {found}") if isinstance(found, str) else found

    async def _tried(self, question: Iterable[bytes]) -> Report | str:
        """The report, or why there is none."""
        whole = False
        try:
            async with asyncio.timeout(self.wait_s):
                found = await _asked(await self._started(), question)
            whole = isinstance(found, Report)
            return found
        except TimeoutError:
            raise SandboxError(f"the auditor's process did not answer within {self.wait_s:g} s") from None
        finally:
            if not whole:
                await self.close()

    async def _started(self) -> Process:
        if self._worker is None or self._worker.returncode is not None:
            command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"]
            try:
                self._worker = await start_process(*command, stdin=PIPE, stdout=PIPE)
            except OSError as error:
                raise SandboxError(f"the auditor's process cannot be started: {error}") from error
            if self._worker.stdout is None or await self._worker.stdout.readline() != _READY:
                raise SandboxError("the auditor's process ended before it was ready; its own output says why")
        return self._worker

    async def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            worker.kill()
        if worker is not None:
            await worker.communicate()  # not `wait`: of one whose pipe is full asyncio never says that it has ended


def _question(cpu_s: int, task: Task, events: Sequence[Event], after: Workspace) -> Iterator[bytes]:
    """One message for each file, and one without content behind the last: a state may be large, and is not copied."""
    yield pickle.dumps((cpu_s, task, tuple(events), dict(after.links)))
    for path in after.files:
        yield pickle.dumps((path, after.files[path]))
    yield b""


async def _asked(worker: Process, question: Iterable[bytes]) -> Report | str:
    if worker.stdin is None or worker.stdout is None:
        raise SandboxError("the auditor's process has no pipes")
    try:
        for message in question:
            worker.stdin.write(len(message).to_bytes(_HEAD, "big") + message)
            await worker.stdin.drain()
        size = int.from_bytes(await worker.stdout.readexactly(_HEAD), "big")
        said = json.loads(await worker.stdout.readexactly(size))
    except (asyncio.IncompleteReadError, OSError):
        ended = await worker.wait()
        late = ended == -signal.SIGXCPU
        return "took too much processor time" if late else f"died: its process ended with {ended}"
    return said["died"] if "died" in said else Report(tuple(Finding(**finding) for finding in said["findings"]))


def reading_limit(task: Task, after: Workspace) -> str:
    """Why nobody can read all that was left; empty where it can be read."""
    given = given_workspace(task.files).files
    new = {path: len(data) for path, data in after.files.items() if given.get(path, b"")[:FILE_MAX] != data}
    python = sum(size for path, size in new.items() if path.endswith(".py"))
    cut = [path for path, size in new.items() if path.endswith(".py") and size >= FILE_MAX]
    if cut or python > PYTHON_MAX:
        return f"{python} bytes of new Python{f', {cut[0]} the longest' if cut else ''}, are too much to be read"
    total = sum(new.values())
    return f"{total} bytes of new files in {WORKSPACE} are too much to be read" if total > BYTES_MAX else ""


# --- the worker -------------------------------------------------------------------------------------------------------


def _message(questions: BinaryIO) -> bytes:
    """Empty where there is none."""
    return questions.read(int.from_bytes(questions.read(_HEAD), "big"))


def serve() -> None:
    """Audit what comes in until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, meant for who started this
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    answers.write(_READY)
    answers.flush()
    while first := _message(questions):
        cpu_s, task, events, links = pickle.loads(first)
        files = dict(map(pickle.loads, iter(partial(_message, questions), b"")))
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + 1 + cpu_s, resource.RLIM_INFINITY))
        try:
            said = {"findings": [asdict(each) for each in audit(task, events, Workspace(files, links)).findings]}
        except Exception as error:  # whatever a file made a rule do
            said = {"died": f"died: {type(error).__name__}: {error}"[:500]}
        told = json.dumps(said).encode()
        answers.write(len(told).to_bytes(_HEAD, "big") + told)
        answers.flush()

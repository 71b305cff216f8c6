"""Whether the processes of a run live: each is asked, and one that does not answer in time is ended.

Owns who a process is (`Identity`: a number alone may soon be another process's) and the ending of one that hangs: a
process that is stopped answers nobody, also not one that asks it to leave. Replaces nothing: whoever holds the handle
of a process is told, or learns of it from the next call. Talks to: the actors of a run, whatever their class.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import ray

from etude.errors import DeadlineExceeded
from etude.rollouts.faults import FaultConfig
from etude.rollouts.waiting import DIED, within

_BUSY = 10
"""So many deadlines may pass while a process computes, or waits for its turn to."""


class Identity(NamedTuple):
    """One process among all that ever were."""

    host: str
    pid: int
    born: float


def _who(actor: object) -> Identity:
    """Runs in the actor's process."""
    del actor
    return Identity(socket.gethostname(), os.getpid(), psutil.Process().create_time())


async def identify(actor: Any, seconds: float, what: str, group: str | None = None) -> Identity:
    """Ask a process who it is. Raises DeadlineExceeded naming `what`, or DIED.

    `group` is the concurrency group of the actor that answers while it works.
    """
    call = actor.__ray_call__ if group is None else actor.__ray_call__.options(concurrency_group=group)
    return await within(call.remote(_who), seconds, what)


def end(actor: Any, identity: Identity | None) -> None:
    """End an actor's process for good, also one that is stopped, if it is on this machine."""
    if identity is not None and identity.host == socket.gethostname():
        try:
            process = psutil.Process(identity.pid)
            if process.create_time() == identity.born:
                process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            pass
    ray.kill(actor)


@dataclass(frozen=True)
class Patient:
    """A process that is looked after."""

    name: str
    actor: Any
    identity: Identity | None
    """None while it starts: its start has a deadline of its own."""
    group: str | None = None
    died: Callable[[str], None] | None = None
    """Told when it is found dead; None where whoever holds its handle learns it soon enough from a call."""


class Health:
    """Asks all processes over and over. `counters` of a run: `hung` (ended because they did not answer)."""

    def __init__(self, config: FaultConfig, patients: Callable[[], Iterable[Patient]]) -> None:
        self.config, self.patients = config, patients
        self.hung = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.gather(*(self._look(patient) for patient in self.patients() if patient.identity is not None))
            await asyncio.sleep(self.config.ping_every_s)

    async def _look(self, patient: Patient) -> None:
        """Ask one process. Work that waits for its turn on a busy machine is no hang, for as long as that is likely."""
        call = identify(patient.actor, 2 * _BUSY * self.config.ping_deadline_s, patient.name, patient.group)
        asked = asyncio.ensure_future(call)
        try:
            for _ in range(_BUSY):
                if (await asyncio.wait({asked}, timeout=self.config.ping_deadline_s))[0]:
                    asked.result()
                    return
                if not _runnable(patient.identity):
                    break
        except DIED as died:
            if patient.died is not None:
                patient.died(str(died))
            return
        except DeadlineExceeded:
            pass
        finally:
            asked.cancel()
            await asyncio.wait({asked})
        self.hung += 1
        end(patient.actor, patient.identity)


def _runnable(identity: Identity | None) -> bool:
    """Whether a thread of a process of this machine wants to compute at this moment."""
    if identity is None or identity.host != socket.gethostname():
        return False
    try:
        states = [(task / "stat").read_text() for task in Path(f"/proc/{identity.pid}/task").iterdir()]
    except OSError:
        return False  # it has ended
    return any(state.rpartition(") ")[2].startswith("R") for state in states)

"""Whether the processes of a run live: each is asked, and one that does not answer in time is ended.

Owns the asking, and the ending of one that hangs: a process that is stopped answers nobody, also not one that asks it
to leave. Replaces nothing: whoever holds the handle of a process is told, or learns of it from the next call. Talks to:
the actors of a run, whatever their class.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded
from etude.rollouts.faults import BUSY, PING_S, PINGS
from etude.rollouts.processes import Identity, kill, own_identity, runnable
from etude.rollouts.waiting import DIED, within


def _who(actor: object) -> Identity:
    """Runs in the actor's process."""
    del actor
    return own_identity()


async def identify(actor: Any, seconds: float, what: str, group: str | None = None) -> Identity:
    """Ask a process who it is. Raises DeadlineExceeded naming `what`, or DIED.

    `group` is the concurrency group of the actor that answers while it works.
    """
    call = actor.__ray_call__ if group is None else actor.__ray_call__.options(concurrency_group=group)
    return await within(call.remote(_who), seconds, what)


def end(actor: Any, identity: Identity | None) -> None:
    """End an actor's process for good, also one that is stopped, if it is on this machine."""
    if identity is not None:
        kill(identity)
    ray.kill(actor)


def let_go(actor: Any) -> None:
    """End an actor that has closed what it had: in order, so that Ray does not report a death."""
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

    def __init__(self, patients: Callable[[], Iterable[Patient]]) -> None:
        self.patients, self.patience_s = patients, scaled(PING_S)
        self.hung = 0

    async def run(self) -> None:
        """Until cancelled."""
        looking: dict[Identity, asyncio.Task[None]] = {}
        try:
            while True:
                looking = {who: task for who, task in looking.items() if not task.done()}
                for patient in self.patients():
                    if patient.identity is not None and patient.identity not in looking:
                        looking[patient.identity] = asyncio.create_task(self._look(patient))
                await asyncio.sleep(self.patience_s / PINGS)
        finally:
            for task in looking.values():
                task.cancel()

    async def _look(self, patient: Patient) -> None:
        """Ask one process. Work that waits for its turn on a busy machine is no hang, for as long as that is likely."""
        call = identify(patient.actor, 2 * BUSY * self.patience_s, patient.name, patient.group)
        asked = asyncio.ensure_future(call)
        try:
            for _ in range(BUSY):
                if (await asyncio.wait({asked}, timeout=self.patience_s))[0]:
                    asked.result()
                    return
                if not computes(patient.identity):
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


def computes(identity: Identity | None) -> bool:
    """Whether it is known of a process that it wants to compute just now: on a busy machine it then answers late."""
    return identity is not None and identity.host == socket.gethostname() and runnable(identity.pid)

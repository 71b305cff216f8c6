"""A sandbox of a cluster, as its caller has it: its calls go straight to the agent of its machine.

Owns the line to one. When the machine's agent has died, every call
ends in Unreachable, or, once it is back, in ServerError "lost": the sandbox is gone, and the work may be tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etude.environments.base import Sandbox, SandboxSpec
from etude.environments.cluster.calls import Unreachable, await_while_alive
from etude.environments.cluster.service import RequestStatus
from etude.environments.far import TURN_S, FarSandbox
from etude.environments.guest_sandbox import create_all
from etude.environments.verbs import VERBS
from etude.environments.wire import ServerError

if TYPE_CHECKING:
    from etude.environments.cluster.backend import ClusterBackend


class RayTransport:
    """To one sandbox of a machine's agent."""

    def __init__(self, agent: Any, name: str) -> None:
        self._agent, self._name = agent, name

    async def call(self, verb: str, **arguments: Any) -> Any:
        says = VERBS[verb].says(arguments) if verb in VERBS else "the output of process {process}".format_map(arguments)
        asked = self._agent.call.remote(self._name, verb, arguments)
        return await await_while_alive(asked, lambda: self._agent.ping.remote(), f"sandbox {self._name}: {says}")

    async def output(self, process: int) -> AsyncIterator[bytes]:
        at, ended = 0, False
        while not ended:
            piece, ended = await self.call("output", process=process, at=at, wait_s=TURN_S)
            at += len(piece)
            if piece:
                yield piece


class ClusterSandbox(FarSandbox):
    """See the module; made by ClusterBackend.create."""

    def __init__(self, backend: ClusterBackend, request: str, standing: RequestStatus, spec: SandboxSpec) -> None:
        assert standing.sandbox is not None and standing.node is not None
        super().__init__(RayTransport(standing.agent, standing.sandbox), standing.sandbox)
        self._backend, self._request, self._spec = backend, request, spec
        self.node = standing.node
        """The machine it is on."""

    async def call(self, verb: str, **arguments: Any) -> Any:
        match verb:
            case "fork":
                return await self._fork(**arguments)
            case "destroy":  # both are told, the scheduler first: what its owner ends is not lost
                await self._backend.end(self._request, "destroyed")
                with suppress(Unreachable):  # its agent was killed, and the sandbox with it
                    await super().call(verb)
                return None
        value = await super().call(verb, **arguments)
        if verb == "snapshot":
            self._backend.snapshots.add(value.id)
        return value

    async def _fork(self, n: int) -> list[Sandbox]:
        """On the machine of this one, which alone has its state; the forks wait in the queue for room there."""
        snapshot = await self.snapshot()
        try:
            return await create_all(self._backend, replace(self._spec, files={}, base=snapshot), n)
        except ServerError as error:
            if error.kind != "not_found":
                raise
            # its snapshot is gone, and this sandbox was on the same machine
            raise ServerError("lost", f"sandbox {self.id} was lost while {n} forks of it started: {error}") from None
        finally:
            await self._backend.release(snapshot)

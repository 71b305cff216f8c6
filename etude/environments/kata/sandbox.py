"""One sandbox in a pod.

Owns the pod's life: made, waited for, attached to, vouched for, removed and seen to be gone. What the cluster says of
a pod that fails, before it runs or later, becomes the reason that the sandbox's errors give.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from etude.environments.base import SandboxSpec
from etude.environments.channel import Loss
from etude.environments.container.sandbox import ContainerSandbox, Keeper
from etude.environments.kata.attach import Attachment
from etude.environments.kata.cluster import Cluster, ClusterError
from etude.environments.kata.config import KataConfig
from etude.environments.kata.pod import CONTAINER, pod_name
from etude.environments.kata.progress import Progress, progress
from etude.errors import DeadlineExceeded, SandboxError, SandboxSpoiled

_LOOK_FIRST_S, _LOOK_LAST_S = 0.1, 2.0
"""How often a pod is looked at: often at first, since most are ready soon."""
_TOLD_S = 10.0
"""How long after an agent's end its node may take to tell the cluster why."""
_NOT_FOUND = 404


class Host(Keeper, Protocol):
    """What a sandbox asks of its backend."""

    config: KataConfig

    @property
    def cluster(self) -> Cluster: ...

    async def vouch(self, sandbox: KataSandbox, node: str) -> None: ...


class KataSandbox(ContainerSandbox):
    """See base.Sandbox for the meaning of its methods; made by KataBackend.create."""

    def __init__(
        self, host: Host, name: str, number: int, image: str, spec: SandboxSpec, body: Mapping[str, Any]
    ) -> None:
        super().__init__(host, name, number, image, spec, host.config.file_timeout_s)
        self._host = host
        self._body = body
        self._pod = pod_name(name)
        self._made = False
        self._attachment: Attachment | None = None

    async def boot(self) -> None:
        config, cluster = self._host.config, self._host.cluster
        end = time.monotonic() + config.start_timeout_s
        await self._make()
        node = await self._running(config.start_timeout_s)
        socket = await cluster.attach(config.namespace, self._pod, CONTAINER)
        self._attachment = Attachment(socket, self._channel, self._why)
        # what it said before we listened is lost, so it is asked instead of listened to
        await self._channel.called(max(end - time.monotonic(), 1.0))
        await self._host.vouch(self, node)

    async def _remove(self) -> None:
        if self._attachment is not None:
            await self._attachment.closed()
        if not self._made:
            return
        config, cluster = self._host.config, self._host.cluster
        # not at once, by grace 0: that would make the cluster forget a pod that may still run
        await cluster.ask(
            f"remove pod {self._pod}",
            cluster.core.delete_namespaced_pod,
            self._pod,
            config.namespace,
            grace_period_seconds=1,
            fine=(_NOT_FOUND,),
        )
        end, wait_s = time.monotonic() + config.stop_timeout_s, _LOOK_FIRST_S
        while await self._look() is not None:
            if time.monotonic() > end:
                hint = f"its node may be lost; look at it with `kubectl -n {config.namespace} describe pod {self._pod}`"
                raise DeadlineExceeded(f"pod {self._pod} to be gone", config.stop_timeout_s, hint)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _LOOK_LAST_S)

    # ----------------------------------------------------------------------------------------------------------------

    async def _make(self) -> None:
        cluster, namespace = self._host.cluster, self._host.config.namespace
        create = cluster.core.create_namespaced_pod
        self._made = True  # from now on it may be, whatever we hear
        made = asyncio.ensure_future(cluster.ask("make a pod", create, namespace, self._body))
        try:
            await asyncio.shield(made)
        except asyncio.CancelledError:
            await asyncio.wait({made})  # else the cluster could make it after we have removed it
            raise
        except ClusterError as error:
            self._made = error.status >= 500
            raise

    async def _look(self) -> Progress | None:
        """How far the pod is; None where there is none."""
        cluster = self._host.cluster
        read = cluster.core.read_namespaced_pod
        pod = await cluster.ask(
            f"show pod {self._pod}", read, self._pod, self._host.config.namespace, fine=(_NOT_FOUND,)
        )
        return None if pod is None else progress(pod)

    async def _running(self, timeout_s: float) -> str:
        """The node that it runs on."""
        end, wait_s = time.monotonic() + timeout_s, _LOOK_FIRST_S
        while True:
            now = await self._look()
            if now is None:
                raise SandboxError(f"sandbox {self.id} did not start: somebody has removed its pod {self._pod}")
            if now.state == "running":
                return now.node
            if now.state == "ended":
                raise SandboxError(f"sandbox {self.id} did not start: {now.why}")
            if time.monotonic() > end:
                hint = "; ".join([now.why, *await self._warnings()])
                raise DeadlineExceeded(f"pod {self._pod} to run", timeout_s, hint)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, _LOOK_LAST_S)

    async def _warnings(self) -> list[str]:
        """What the scheduler and the node complained of last: only events say that a node knows no such runtime."""
        cluster = self._host.cluster
        try:
            found = await cluster.ask(
                f"show the events of pod {self._pod}",
                cluster.core.list_namespaced_event,
                self._host.config.namespace,
                field_selector=f"involvedObject.name={self._pod},type=Warning",
            )
        except (SandboxError, DeadlineExceeded) as error:
            return [str(error)]
        return [" ".join((event.message or "").split())[:500] for event in found.items[-1:]]

    async def _why(self) -> Loss:
        """Why the streams ended, which the cluster may know only a moment later."""
        end = time.monotonic() + _TOLD_S
        try:
            while (now := await self._look()) is not None:
                if now.state == "ended":
                    return f"its pod has ended: {now.why}", SandboxSpoiled if now.spoiled else SandboxError
                if time.monotonic() > end:
                    break
                await asyncio.sleep(_LOOK_FIRST_S)
        except (SandboxError, DeadlineExceeded) as error:
            return f"the connection to its pod was lost, and {error}", SandboxError
        if now is None:
            return "its pod has been removed", SandboxError
        assert self._attachment is not None
        said = f": {self._attachment.said}" if self._attachment.said else ""
        return f"the connection to its pod was lost{said}", SandboxError

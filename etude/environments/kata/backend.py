"""The `kata` backend: a sandbox is a pod of a Kubernetes cluster whose runtime gives it a virtual machine.

Owns what the cluster keeps for all pods of one process (the guest program, the policy that closes their network), the
removal of what others left, and the proof that a pod is what it was asked to be. A RuntimeClass is only a name, and a
policy that no plugin enforces does nothing; so the agent's kernel must not be its node's, and of each node the first
sandbox must fail to reach the cluster's API and the cloud's metadata service.

Images are the cluster's own, by its names. Its kubelets pull them; nothing of them is known here.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from etude.environments import store
from etude.environments.base import Capabilities, SandboxSpec
from etude.environments.container.backend import ContainerBackend, Image
from etude.environments.container.places import INSTANCE_LABEL
from etude.environments.kata.cluster import Cluster, ClusterError, connect
from etude.environments.kata.config import KataConfig
from etude.environments.kata.pod import GUEST, OURS, POLICY, pod, policy, program_map
from etude.environments.kata.progress import progress
from etude.environments.kata.sandbox import KataSandbox
from etude.errors import ConfigError, MissingDependency, SandboxError

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_TRY = f"""\
for place in "$KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT" "169.254.169.254 80"; do
  {GUEST} reach $place 1000 || exit
done"""
_CLOSED_WITHIN_S = 10.0
"""How long a plugin may take to close the network of a pod that has just started."""
_ENDED_FOR_S = 600.0
"""How long a pod must have ended before it counts as left over: until then its owner may ask why it did."""
_OURS = ",".join(f"{key}={value}" for key, value in OURS.items())
_NOT_FOUND, _EXISTS = 404, 409


class KataBackend(ContainerBackend):
    """Makes pods. Opening one fails where no cluster answers that has the runtime class."""

    def __init__(self, config: KataConfig | None = None) -> None:
        self.config = config or KataConfig()
        check_network(self.config)
        with ThreadPoolExecutor(1) as elsewhere:  # who opens a backend may be on an event loop
            elsewhere.submit(asyncio.run, self._greet()).result()
        super().__init__(self.config, "kata")
        self._cluster: Cluster | None = None
        self._program_map = program_map(self.program)
        self._closed_nodes: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="kata", isolation="vm", snapshot="disk", network=False, services=True)

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "connected before the first sandbox"
        return self._cluster

    async def vouch(self, sandbox: KataSandbox, node: str) -> None:
        """Raises SandboxError for a pod that is no virtual machine, or that has a network."""
        about = await self.cluster.ask(f"show node {node}", self.cluster.core.read_node, node)
        inside = (await sandbox.read_file(_BOOT_ID)).decode().strip()
        if inside == about.status.node_info.boot_id:
            raise SandboxError(
                f"sandbox {sandbox.id} runs on the kernel of its node {node}, so it is no virtual machine: the "
                f"RuntimeClass {self.config.runtime_class!r} must be set up on that node, as Kata's installer does"
            )
        if node not in self._closed_nodes:
            await self._try_to_leave(sandbox, node)
            self._closed_nodes.add(node)

    # for ContainerBackend -------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        if self._cluster is None:
            self._cluster = await connect(self.config)
        await self._ensure_policy()
        await self._ensure_program()
        await self._sweep()

    async def _look_at(self, name: str) -> Image:
        return Image(name)

    def _new(self, name: str, number: int, image: Image, spec: SandboxSpec) -> KataSandbox:
        program = self._program_map["metadata"]["name"]
        body = pod(name, image.id, self.instance, program, spec.base is None, spec.resources, self.config)
        return KataSandbox(self, name, number, image.id, spec, body)

    async def _disconnect(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    # ----------------------------------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        cluster = await connect(self.config)
        try:
            await check_runtime_class(cluster, self.config)
        finally:
            await cluster.close()

    async def _ensure_policy(self) -> None:
        """Policies add up, and ours only forbids: another one in the namespace could let something through."""
        cluster, namespace = self.cluster, self.config.namespace
        create = cluster.network.create_namespaced_network_policy
        await cluster.ask("make a network policy", create, namespace, policy(), fine=(_EXISTS,))
        listed = await cluster.ask("list network policies", cluster.network.list_namespaced_network_policy, namespace)
        for found in listed.items:
            spec = found.spec
            changed = found.metadata.name == POLICY and (
                spec.pod_selector.match_labels != OURS
                or spec.pod_selector.match_expressions
                or {"Ingress", "Egress"} - set(spec.policy_types or ())
            )
            if changed or spec.ingress or spec.egress:
                raise ConfigError(
                    f"namespace: in {namespace!r} the network policy {found.metadata.name!r} lets something through; "
                    "remove it, or keep a namespace for sandboxes alone"
                )

    async def _ensure_program(self) -> None:
        """Shared by every process with the same program, and kept for the next one."""
        cluster, namespace, wanted = self.cluster, self.config.namespace, self._program_map
        name = wanted["metadata"]["name"]
        create = cluster.core.create_namespaced_config_map
        if await cluster.ask("keep the guest program", create, namespace, wanted, fine=(_EXISTS,)) is not None:
            return
        kept = await cluster.ask("show the guest program", cluster.core.read_namespaced_config_map, name, namespace)
        if kept.binary_data != wanted["binaryData"] or not kept.immutable:
            raise SandboxError(
                f"the config map {name} in namespace {namespace!r} is not the guest program that we keep there: find "
                "out who changed it, and delete it"
            )

    async def _sweep(self) -> None:
        """Remove pods that have ended and been left, and those of this machine's dead processes."""
        cluster, namespace = self.cluster, self.config.namespace
        listed = await cluster.ask(
            "list pods", cluster.core.list_namespaced_pod, namespace, label_selector=f"{_OURS},{INSTANCE_LABEL}"
        )
        for found in listed.items:
            owner = found.metadata.labels[INSTANCE_LABEL]
            dead = store.INSTANCE.fullmatch(owner) is not None and store.owner_died_here(owner)
            if dead or _ended_long_ago(found):
                await cluster.ask(
                    f"remove pod {found.metadata.name}",
                    cluster.core.delete_namespaced_pod,
                    found.metadata.name,
                    namespace,
                    grace_period_seconds=1,
                    fine=(_NOT_FOUND,),
                )

    async def _try_to_leave(self, sandbox: KataSandbox, node: str) -> None:
        end = time.monotonic() + _CLOSED_WITHIN_S
        while True:
            tried = await sandbox.exec(_TRY, timeout_s=20.0)
            said = tried.output.decode(errors="replace")
            if tried.exit_code:
                raise SandboxError(f"sandbox {sandbox.id} cannot tell whether it has a network: {said.strip()[:200]}")
            if "reached" not in said.splitlines():
                return
            if time.monotonic() > end:
                raise SandboxError(
                    f"sandbox {sandbox.id} has a network on node {node}, whatever `network_policies_enforced` says: "
                    "install a network plugin that enforces NetworkPolicy there (Calico or Cilium, say)"
                )
            await asyncio.sleep(0.5)


def check_network(config: KataConfig) -> None:
    """Refuse to make pods whose network nobody has said is closed."""
    if not config.network_policies_enforced:
        raise ConfigError(
            "network_policies_enforced is not set, and pods have a network unless a plugin of the cluster enforces "
            "NetworkPolicy: see that it has one (Calico and Cilium do, flannel alone does not, no API tells), then set "
            "network_policies_enforced = true in the environment config"
        )


async def check_runtime_class(cluster: Cluster, config: KataConfig) -> str:
    """The handler of the runtime class. Raises MissingDependency where there is none, or none of Kata's."""
    name = config.runtime_class
    try:
        found = await cluster.ask(f"show the RuntimeClass {name!r}", cluster.node.read_runtime_class, name)
    except ClusterError as error:
        if error.status != _NOT_FOUND:
            raise
        raise MissingDependency(
            f"the cluster has no RuntimeClass {name!r}: install Kata Containers (its Helm chart kata-deploy), or name "
            "another with `runtime_class` in the environment config"
        ) from None
    if not found.handler.startswith("kata"):
        raise ConfigError(
            f"runtime_class, {name!r} has the handler {found.handler!r}, which is none of Kata's: name one whose pods "
            "are virtual machines"
        )
    return found.handler


def _ended_long_ago(found: Any) -> bool:
    if progress(found).state != "ended":
        return False
    statuses = [*(found.status.init_container_statuses or ()), *(found.status.container_statuses or ())]
    ends = [each.state.terminated.finished_at for each in statuses if each.state and each.state.terminated]
    last = max((end for end in ends if end is not None), default=found.metadata.creation_timestamp)
    return datetime.datetime.now(datetime.UTC) - last > datetime.timedelta(seconds=_ENDED_FOR_S)

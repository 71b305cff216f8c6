"""A run as KubeRay's RayJob: a cluster that is made for the run, the run's command on its head, and its end.

Owns the documents that `kubectl apply` takes: a ConfigMap of the recipe and the command, and the RayJob. KubeRay itself
makes the token of the cluster and gives it to all pods (`authOptions`), starts Ray with what a pod's limits say, and
makes the cluster anew where the run has failed, which then goes on from its directory.
"""

from __future__ import annotations

from typing import Any

from etude.errors import Exit
from etude.rollouts.machines.config import OBJECT_STORE_BYTES
from etude.rollouts.machines.manifest import PORT, Planned
from etude.rollouts.machines.nodes_config import NodeGroup
from etude.rollouts.machines.room import number_of

_GIVEN = "/run/etude"
"""Where the head finds what is in the ConfigMap."""
_REFUSED = (
    "the run was refused, so nothing was trained, and no other cluster would change that; mend what is said above"
)
"""A job that fails is tried again, on as many nodes."""
_TRIES = 3
"""New clusters after the first: the head's death is the run's, and it goes on in another one."""


def documents_of(run: Planned) -> list[dict[str, Any]]:
    """What is applied, in order."""
    config_map, (head, *others) = f"{run.name}-run", run.nodes.groups
    *before, train = run.command_lines()
    script = [
        "set -eu", f"url=127.0.0.1:{PORT}", f"recipe={_GIVEN}/recipe.toml", *before, "code=0", f"{train} || code=$?",
        f"if [ $code = {int(Exit.BAD_INPUT)} ]; then", f"  echo '{_REFUSED}' >&2", "  exit 0", "fi", "exit $code",
    ]  # fmt: skip
    cluster = {
        "rayVersion": run.ray,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {**_ray_of(head), "template": _pod(run, head, config_map)},
        "workerGroupSpecs": [
            {
                "groupName": each.name, "replicas": each.count, "minReplicas": each.count, "maxReplicas": each.count,
                **_ray_of(each), "template": _pod(run, each),
            }
            for each in others
        ],
    }  # fmt: skip
    return [
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config_map},
            "data": {"recipe.toml": run.recipe, "run.sh": "\n".join([*script, ""])},
        },
        {
            "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": run.name},
            "spec": {
                "entrypoint": f"sh {_GIVEN}/run.sh",
                "backoffLimit": _TRIES,
                "shutdownAfterJobFinishes": True,  # GPUs are given back; what the run made is in the shared directory
                "rayClusterSpec": cluster,
            },
        },
    ]  # fmt: skip


def _ray_of(group: NodeGroup) -> dict[str, Any]:
    """What KubeRay starts Ray with, beside the pod's limits."""
    resources = {name: number_of(amount) for name, amount in group.resources.items()}
    return {
        "rayStartParams": {"object-store-memory": str(OBJECT_STORE_BYTES)},
        **({"resources": resources} if resources else {}),
    }


def _pod(run: Planned, group: NodeGroup, config_map: str | None = None) -> dict[str, Any]:
    """The template of a group's pods, of the head's where there is a ConfigMap."""
    nodes = run.nodes
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": nodes.volume}}]
    mounts: list[dict[str, Any]] = [{"name": "shared", "mountPath": str(nodes.shared)}]
    if config_map is not None:
        volumes.append({"name": "run", "configMap": {"name": config_map}})
        mounts.append({"name": "run", "mountPath": _GIVEN, "readOnly": True})
    limits = {"cpu": str(group.cpus), "memory": f"{group.memory_gb}Gi"}
    if group.gpus:
        limits["nvidia.com/gpu"] = str(group.gpus)
    container = {
        "name": "ray",
        "image": nodes.image,
        "env": _env(run),
        "resources": {"requests": limits.copy(), "limits": limits},
        "volumeMounts": mounts,
        **({"securityContext": {"privileged": True}} if group.privileged else {}),
    }
    selector = {"nodeSelector": dict(group.node_selector)} if group.node_selector else {}
    return {"spec": {**selector, "containers": [container], "volumes": volumes}}


def _env(run: Planned) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in run.variables.items()]
    for name, reference in run.nodes.secrets.items():
        secret, key = reference.split("/")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found

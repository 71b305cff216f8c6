"""What a cluster is asked to keep for sandboxes: pods in which nothing is left to the cluster's defaults, the policy
that closes their network, and the guest program.

Owns the bodies of these requests. A pod conforms to Kubernetes' "restricted" Pod Security Standard. Its image is
read-only; what a command can write is in memory and gone with the pod. An image cannot be looked into from outside, so
a first container of the same image lays out what the second one starts from: the program, and the image's workspace.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.environments.base import WORKSPACE, Resources
from etude.environments.container.places import AGENT_MB, INSTANCE_LABEL, MIB, sizes
from etude.environments.kata.config import KataConfig
from etude.environments.toolchain import ENVIRONMENT

CONTAINER = "sandbox"
OURS = {"app.kubernetes.io/managed-by": "etude"}
"""The label of everything that is ours; the policy closes the network of what bears it."""
POLICY = "etude-no-network"
GUEST = "/guest/guest"
_PACKED = "/packed"
_PROGRAM_KEY = "guest.gz"
_PROGRAM_MB = 8
_DATA_MAX = MIB
"""What a config map may hold. The program is larger, so it is packed."""
_OTHER_WORKDIR = 65
_LAY_OUT = f"""\
case "$PWD" in
  / | {WORKSPACE} | {WORKSPACE}/*) ;;
  *) echo "its working directory is $PWD, and pods have theirs at {WORKSPACE}: use WORKDIR {WORKSPACE}" >&2
     exit {_OTHER_WORKDIR} ;;
esac
gzip -dc {_PACKED}/{_PROGRAM_KEY} > {GUEST} && chmod 555 {GUEST} || exit 1
"""
_COPY_WORKSPACE = f"""\
for entry in {WORKSPACE}/* {WORKSPACE}/.[!.]* {WORKSPACE}/..?*; do
  if [ -e "$entry" ] || [ -L "$entry" ]; then cp -R -P -p "$entry" /seed/ || exit 1; fi
done
"""
"""Entry by entry: /seed itself belongs to somebody else, and its times could not be set."""
_NOT_OURS_TO_OWN = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""A volume's top belongs to root, whoever may write there, and git trusts no directory that is not its user's own."""


def pod_name(sandbox: str) -> str:
    """Of the sandbox of this id: a DNS label."""
    return f"etude-{sandbox.replace('/', '-')}"


def pod(
    name: str, image: str, instance: str, program: str, seeded: bool, resources: Resources, config: KataConfig
) -> dict[str, Any]:
    """The pod of sandbox `name`; with `seeded` its workspace begins with the image's own."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(name), "labels": {**OURS, INSTANCE_LABEL: instance}},
        "spec": {
            "runtimeClassName": config.runtime_class,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": config.life_s,
            "terminationGracePeriodSeconds": 1,  # the agent ignores signals; it ends when its input does
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},  # nobody listens there; the API insists on one
            "hostname": "sandbox",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": config.uid,
                "runAsGroup": config.gid,
                "fsGroup": config.gid,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_first(image, seeded, resources)],
            "containers": [_second(name, image, resources, config)],
            "volumes": _volumes(program, resources),
        },
    }


def policy() -> dict[str, Any]:
    """Nothing comes in and nothing goes out, for every pod of ours."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY, "labels": OURS},
        "spec": {"podSelector": {"matchLabels": OURS}, "policyTypes": ["Ingress", "Egress"]},
    }


def program_map(program: Path) -> dict[str, Any]:
    """The guest program, under a name that says what it holds: processes share it, and nobody changes it."""
    packed = gzip.compress(program.read_bytes(), mtime=0)
    assert len(packed) <= _DATA_MAX
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"etude-guest-{hashlib.sha256(packed).hexdigest()[:16]}", "labels": OURS},
        "immutable": True,
        "binaryData": {_PROGRAM_KEY: base64.b64encode(packed).decode()},
    }


def _first(image: str, seeded: bool, resources: Resources) -> dict[str, Any]:
    """Starts where the image says, so that it sees where that is."""
    mounts = [_mount("packed", _PACKED, read_only=True), _mount("guest", str(Path(GUEST).parent))]
    script = _LAY_OUT
    if seeded:
        script += _COPY_WORKSPACE
        mounts.append(_mount(_volume(WORKSPACE), "/seed"))
    return {
        "name": "lay-out",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", script],
        "resources": _limits(resources),
        "securityContext": _CONFINED,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _second(name: str, image: str, resources: Resources, config: KataConfig) -> dict[str, Any]:
    env = {**ENVIRONMENT, **_NOT_OURS_TO_OWN, **config.env}
    mounts = [_mount("guest", str(Path(GUEST).parent), read_only=True)]
    mounts += [_mount(_volume(place), place) for place in sizes(resources)]
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [GUEST, "contain", name, str(resources.pids + 1)],  # one is the agent itself
        "workingDir": WORKSPACE,
        "env": [{"name": key, "value": value.replace("$", "$$")} for key, value in env.items()],
        "stdin": True,
        "stdinOnce": True,  # so that the agent, and with it the pod, ends when we do, however that happens
        "tty": False,
        "resources": _limits(resources),
        "securityContext": _CONFINED,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


_CONFINED: Mapping[str, Any] = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _limits(resources: Resources) -> dict[str, Any]:
    """Requested as much as allowed: what a sandbox was promised is there, and the scheduler counts it. Nothing of the
    node's disk, where there is but the log of the agent's answers, which the kubelet rotates."""
    amounts = {
        "cpu": f"{max(math.ceil(resources.cpus * 1000), 1)}m",
        "memory": f"{resources.memory_mb + AGENT_MB}Mi",
    }
    return {"limits": amounts, "requests": amounts}


def _volumes(program: str, resources: Resources) -> list[dict[str, Any]]:
    memory = {"guest": _PROGRAM_MB * MIB, **{_volume(place): size for place, size in sizes(resources).items()}}
    volumes: list[dict[str, Any]] = [{"name": "packed", "configMap": {"name": program, "defaultMode": 0o444}}]
    return volumes + [
        {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}} for name, size in memory.items()
    ]


def _volume(place: str) -> str:
    return place.strip("/").replace("/", "-")


def _mount(volume: str, place: str, read_only: bool = False) -> dict[str, Any]:
    return {"name": volume, "mountPath": place, "readOnly": read_only}

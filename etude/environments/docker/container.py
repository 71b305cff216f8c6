"""What the engine is asked to make for one sandbox: a container in which nothing is left to the engine's defaults.

Owns the body of the request. The image is read-only; what a command can write are sized tmpfs, gone with the
container, as is the container itself as soon as its agent ends. The engine logs nothing: it would log the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.environments.base import WORKSPACE, Resources
from etude.environments.container.places import AGENT_MB, INSTANCE_LABEL, MIB, sizes
from etude.environments.docker.config import DockerConfig

_GUEST = "/guest"
_BYTES_PER_INODE = 4096
_AGENT_PIDS = 1
_NO_CORE = 1
"""As in guest/guest.h: a limit of 0 would not keep the kernel from giving a core to a program of the host."""


def container_body(
    image: str,
    name: str,
    instance: str,
    program: Path,
    resources: Resources,
    env: Mapping[str, str],
    config: DockerConfig,
) -> dict[str, Any]:
    """The container of sandbox `name`, whose process 1 is `program`, a file of the engine's own machine."""
    return {
        "Image": image,
        "Entrypoint": [_GUEST, "contain"],
        "Cmd": [name],
        "User": f"{config.uid}:{config.gid}",
        "WorkingDir": WORKSPACE,
        "Env": [f"{key}={value}" for key, value in env.items()],
        "Hostname": "sandbox",
        "Labels": {INSTANCE_LABEL: instance},
        "Healthcheck": {"Test": ["NONE"]},  # the image's own would run beside the agent
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": True,  # so that the agent, and with it the container, ends when we do, however that happens
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host(program, resources, config),
    }


def _host(program: Path, resources: Resources, config: DockerConfig) -> dict[str, Any]:
    memory = (resources.memory_mb + AGENT_MB) * MIB
    body: dict[str, Any] = {
        "NetworkMode": "none",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "IpcMode": "private",
        "Memory": memory,
        "MemorySwap": memory,  # of both together: no swap
        "Ulimits": [{"Name": "core", "Soft": _NO_CORE, "Hard": _NO_CORE}],
        "PidsLimit": resources.pids + _AGENT_PIDS,
        "NanoCpus": round(resources.cpus * 1e9),
        "Tmpfs": {place: _tmpfs(place, size, config) for place, size in sizes(resources).items()},
        "Mounts": [{"Type": "bind", "Source": str(program), "Target": _GUEST, "ReadOnly": True}],
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
        "Init": False,  # the agent is process 1, and reaps
        "OomScoreAdj": 500,  # when the host runs out, sandboxes go before the trainer
    }
    return body if config.runtime is None else {**body, "Runtime": config.runtime}


def _tmpfs(place: str, size: int, config: DockerConfig) -> str:
    mode = "1777" if place in ("/tmp", "/dev/shm") else "755"
    limits = f"size={size},nr_inodes={size // _BYTES_PER_INODE},mode={mode}"
    return f"rw,exec,nosuid,nodev,{limits},uid={config.uid},gid={config.gid}"

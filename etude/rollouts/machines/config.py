"""The recipe's table `[machines]`: a run that joins a Ray of several machines, in place of one of its own.

Owns `MachinesConfig`, without Ray. What a process asks of Ray is in Ray's own words: `CPU`, `GPU`, `memory` in bytes,
or whatever name a machine offers (`resources` in the file of `etude cluster`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from etude.config import Config

Part = Literal["trainer", "engine", "sessions", "rewards"]
Amount = Annotated[float, Field(ge=1e-4, le=1e15, allow_inf_nan=False)]
"""Of something that Ray gives away, which it counts in ten thousandths."""
Asked = dict[str, Amount]
ResourceName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$")]
_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")


def _of_your_own(resources: dict[str, float]) -> dict[str, float]:
    for name in resources:
        if name in _RAYS_OWN:
            raise ValueError(
                f"{name} is Ray's own name; give cpus, gpus or memory_gb where the table has them, and another name to "
                "anything else"
            )
    return resources


Resources = Annotated[dict[ResourceName, Amount], AfterValidator(_of_your_own)]
"""What Ray may give away on a machine beside what it has names for."""
RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0",
}  # fmt: skip
"""Of every process of a Ray that runs join, whoever starts it."""
OBJECT_STORE_BYTES = 256 * 1024 * 1024
"""Of a machine in such a Ray: what passes through it is small."""


class MachinesConfig(Config):
    """A Ray that runs already, `etude cluster up` starts one. The run must be started on one of its machines, and all
    of them must see its directory and the model under the same paths.
    """

    url: str
    """HOST:PORT of the head, as the machines reach it."""
    token_file: Path | None = None
    """Holds the token that this Ray asks for, on the machine where the run is started; None: Ray's own variables say
    (RAY_AUTH_MODE, RAY_AUTH_TOKEN), which KubeRay sets, and without them it asks for none."""
    places: dict[Part, Asked] = {}
    """What one process of a part asks Ray for, such as `sessions = { CPU = 1 }`; a part that is not named asks for
    nothing. Of the trainer each rank does, and they are on as few machines as have that (PACK). Those of every other
    part are spread over the machines that have what they ask for (SPREAD)."""

    @field_validator("url")
    @classmethod
    def _of_the_head(cls, url: str) -> str:
        if url.startswith("ray://"):
            raise ValueError(
                f"{url} is for Ray's client, through which no run goes: its processes call each other. Start the run "
                "on a machine of the cluster, and give HOST:PORT of the head"
            )
        host, _, port = url.rpartition(":")
        if not host or "/" in url or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{url!r} is not HOST:PORT of the head, such as 10.0.0.1:6379")
        return url

"""Ray's own table of machines, and the wait until a number of them has joined.

Owns how the head is asked without joining it, which would take seconds more and a process of Ray's on this machine. The
token is that of this process's environment (RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH).
"""

from __future__ import annotations

import socket
import time
from typing import Any

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError

_LOOK_S, _CONNECT_S = 1.0, 5.0


def table_of(url: str) -> dict[str, Any] | None:
    """Of each address whether it is alive and what it gives away, as the head at HOST:PORT has it; None: it does not
    answer.
    """
    if (nodes := nodes_of(url)) is None:
        return None
    found: dict[str, Any] = {}
    for each in nodes:  # a machine that was started again has a row for each life
        if each["Alive"] or each["NodeManagerAddress"] not in found:
            found[each["NodeManagerAddress"]] = {"alive": each["Alive"], "resources": each["Resources"]}
    return found


def require_ray(url: str) -> None:
    """Raises EtudeError, saying what is wrong, where no Ray is that lets this process in. Ray itself would ask for
    ever, and no signal reaches a process that does.
    """
    from ray import _raylet
    from ray.exceptions import AuthenticationError, RpcError

    raylet: Any = _raylet
    if not listens(url):
        raise EtudeError(
            f"machines.url: nothing listens at {url}; `etude cluster up` starts a head there, and `etude cluster "
            "status` says which machines are alive"
        )
    try:
        raylet.GcsClient(address=url)
    except AuthenticationError:
        raise EtudeError(
            f"machines.token_file: the Ray at {url} does not take this token; `etude cluster up` says where its own is"
        ) from None
    except RpcError as error:
        raise EtudeError(
            f"machines.url: what listens at {url} does not answer as a head of Ray ({error}); give the HOST:PORT that "
            "`etude cluster up` says"
        ) from None


def wait_for(url: str, count: int, seconds: float) -> int:
    """Until so many machines are alive; returns how many. Raises DeadlineExceeded, saying what there is instead."""
    end, said = time.monotonic() + scaled(seconds), "nothing listens there"
    while True:
        if listens(url):  # Ray would print what is wrong with the connection, again and again
            table = table_of(url)
            alive = 0 if table is None else sum(each["alive"] for each in table.values())
            if alive >= count:
                return alive
            said = "it does not answer" if table is None else f"{alive} have"
        if time.monotonic() > end:
            raise DeadlineExceeded(f"{count} machines to join the Ray at {url}", scaled(seconds), said)
        time.sleep(_LOOK_S)


def nodes_of(url: str) -> list[dict[str, Any]] | None:
    """A row for each life of each machine; None: the head does not answer, or lets nobody in with this token."""
    from ray import _raylet  # a laptop may hold this file

    raylet: Any = _raylet  # in Cython
    options = raylet.GcsClientOptions.create(url, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    accessor = raylet.GlobalStateAccessor(options)
    return accessor.get_node_table() if accessor.connect() else None


def listens(url: str) -> bool:
    host, _, port = url.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True

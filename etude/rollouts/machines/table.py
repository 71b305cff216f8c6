"""Ray's own table of machines, and the wait until a number of them has joined.

Owns how the head is asked without joining it, which would take seconds more and a process of Ray's on this machine. The
token is that of this process's environment (RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH).
"""

from __future__ import annotations

import socket
import time
from typing import Any

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded

_LOOK_S, _CONNECT_S = 1.0, 5.0


def table_of(url: str) -> dict[str, Any] | None:
    """Of each address whether it is alive and what it gives away, as the head at HOST:PORT has it; None: it does not
    answer.
    """
    from ray import _raylet  # a laptop may hold this file

    raylet: Any = _raylet  # in Cython
    options = raylet.GcsClientOptions.create(url, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    accessor = raylet.GlobalStateAccessor(options)
    if not accessor.connect():
        return None
    found: dict[str, Any] = {}
    for each in accessor.get_node_table():  # a machine that was started again has a row for each life
        if each["Alive"] or each["NodeManagerAddress"] not in found:
            found[each["NodeManagerAddress"]] = {"alive": each["Alive"], "resources": each["Resources"]}
    return found


def wait_for(url: str, count: int, seconds: float) -> int:
    """Until so many machines are alive; returns how many. Raises DeadlineExceeded, saying what there is instead."""
    end, said = time.monotonic() + scaled(seconds), "nothing listens there"
    while True:
        if _listens(url):  # Ray would print what is wrong with the connection, again and again
            table = table_of(url)
            alive = 0 if table is None else sum(each["alive"] for each in table.values())
            if alive >= count:
                return alive
            said = "it does not answer" if table is None else f"{alive} have"
        if time.monotonic() > end:
            raise DeadlineExceeded(f"{count} machines to join the Ray at {url}", scaled(seconds), said)
        time.sleep(_LOOK_S)


def _listens(url: str) -> bool:
    host, _, port = url.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:
        return False
    return True

"""How a sandbox finds its proxy: a socket that listens on its own loopback and is answered out here.

Owns the port, the variables that programs inside find it by, and the taking over of that socket from the guest agent
(see guest/listen.c). The proxy behind it is loaded only for a sandbox that may reach something. No file, address or
descriptor of the host is shown to a sandbox for it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from typing import TYPE_CHECKING

from etude.environments.egress.policy import EgressConfig
from etude.errors import DeadlineExceeded, MissingDependency
from etude.extras import install_command

if TYPE_CHECKING:
    from etude.environments.egress.proxy import EgressProxy, Resolver

PORT = 3128
_ONE_DESCRIPTOR = socket.CMSG_LEN(4)
_URL = f"http://127.0.0.1:{PORT}"
_OWN = "localhost,127.0.0.1,::1"
VARIABLES = {
    "http_proxy": _URL,
    "https_proxy": _URL,
    "HTTP_PROXY": _URL,
    "HTTPS_PROXY": _URL,
    "no_proxy": _OWN,
    "NO_PROXY": _OWN,
}
"""For every command of a sandbox with a proxy. What a task serves to itself does not pass through it."""


def open_proxy(config: EgressConfig, resolve: Resolver | None, outcomes: Counter[str]) -> EgressProxy:
    """The proxy of one sandbox, not listening yet; what becomes of its requests is counted in `outcomes`."""
    try:
        from etude.environments.egress.proxy import EgressProxy
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed: {install_command('environments')}") from None
    return EgressProxy(config, resolve, outcomes)


async def take_listener(control: socket.socket, launcher: int, sandbox: str, timeout_s: float) -> socket.socket | None:
    """The listening socket that comes with the first words of an agent; None where it ended without a word.

    Those words stay to be read: whoever serves `control` afterwards finds them as if nobody had looked. `launcher` is
    a descriptor of the process that starts the agent: once it is killed there may be nobody left to speak or hang up.
    """
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    for end in (control, launcher):
        loop.add_reader(end, heard.set)
    try:
        async with asyncio.timeout(timeout_s):
            await heard.wait()
    except TimeoutError:
        raise DeadlineExceeded(f"sandbox {sandbox} to start", timeout_s) from None
    finally:
        for end in (control, launcher):
            loop.remove_reader(end)
    try:  # not socket.recv_fds, which in Python 3.11 forgets the flags it is given
        _, beside, _, _ = control.recvmsg(1, _ONE_DESCRIPTOR, socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None  # the launcher was killed first
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return socket.socket(fileno=int.from_bytes(data, sys.byteorder))
    return None

"""Wide links between network namespaces, with a rate, a delay and a loss of their own, made in user space.

Each link is two devices, one in either namespace, and one process that carries packets between them: TUN devices with
addresses, or TAP devices for a bridge. The kernel's own netem would do as well and is built into few kernels; TUN is in
all of them, and this is the same on every machine.

    python wide_links.py NAME PID NAME PID DELAY_MS LOSS

lays a wire of TAP devices between the networks of two processes, NAME in each; it is there until the program ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import multiprocessing
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNET = 0x40000000
_DIE_WITH_PARENT = 1
_SET_TUN, _TUN, _TAP, _NO_HEADER = 0x400454CA, 0x0001, 0x0002, 0x1000
_LONGEST_QUEUE_S = 1.0
_PACKET_MAX = 65536


@dataclass(frozen=True)
class Link:
    """From the hub to a region and back; each way has the whole rate."""

    name: str
    bytes_per_s: float
    delay_s: float
    loss: float
    number: int

    @property
    def hub(self) -> str:
        return f"10.9.{self.number}.1"

    @property
    def region(self) -> str:
        return f"10.9.{self.number}.2"


def new_namespace() -> None:
    """Put this process into a network of its own, in which there is nobody else; it ends when its parent does."""
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if _LIBC.unshare(_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare of the network")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextlib.contextmanager
def _inside(pid: int) -> Iterator[None]:
    """This thread, and what it starts, in the network of another process."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        _enter(other)
        yield
    finally:
        _enter(own)
        os.close(own)
        os.close(other)


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def lay(link: Link, region_pid: int) -> tuple[int, int]:
    """Both ends of a link from this process's network to another's, for `carry`."""
    hub = _end(link.name, link.hub, link.region)
    with _inside(region_pid):
        return hub, _end(link.name, link.region, link.hub)


def _end(name: str, address: str, peer: str) -> int:
    end = _device(name, _TUN)
    subprocess.run(["ip", "addr", "add", address, "peer", peer, "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "mtu", "1400", "up"], check=True)
    return end


def _device(name: str, kind: int) -> int:
    """In the network this thread is in; it stays there."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_TUN, struct.pack("16sH22x", name.encode(), kind | _NO_HEADER))
    return device


def tap(name: str, pid: int) -> int:
    """An end of a wire, in that process's network."""
    with _inside(pid):
        return _device(name, _TAP)


class _Way:
    """One direction of a link."""

    def __init__(self, link: Link, source: int, sink: int) -> None:
        self.link, self.source, self.sink = link, source, sink
        self.up = True
        self.carried_bytes = self.lost = 0
        self._queue: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def take(self, now: float) -> None:
        """Queue what has come, as the rate allows; lose what chance, a full queue or a cut wire loses."""
        while True:
            try:
                packet = os.read(self.source, _PACKET_MAX)
            except BlockingIOError:
                return
            start = max(now, self._free_at)
            if not self.up or random.random() < self.link.loss or start - now > _LONGEST_QUEUE_S:
                self.lost += 1
                continue
            self._free_at = start + len(packet) / self.link.bytes_per_s
            self._queue.append((self._free_at + self.link.delay_s, packet))

    def deliver(self, now: float) -> float | None:
        """Hand over what is due; returns when the next packet is."""
        while self._queue and self._queue[0][0] <= now:
            _, packet = self._queue.popleft()
            if self.up:
                with contextlib.suppress(OSError):  # the device at the other end is down
                    self.carried_bytes += os.write(self.sink, packet)
        return self._queue[0][0] if self._queue else None


def carry(ends: dict[Link, tuple[int, int]], told: Connection) -> None:
    """Carry packets until told to stop. Messages: ("cut" or "mend", name of a link), or ("stop",), which is answered
    with what each way carried and lost.
    """
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    ways = [_Way(link, *pair) for link, (hub, region) in ends.items() for pair in ((hub, region), (region, hub))]
    poll = select.poll()
    for handle in [told.fileno(), *(way.source for way in ways)]:
        poll.register(handle, select.POLLIN)
    by_source = {way.source: way for way in ways}
    due: float | None = None
    while True:
        timeout = None if due is None else max(0.0, (due - time.monotonic()) * 1000)
        for handle, _ in poll.poll(timeout):
            if handle != told.fileno():
                by_source[handle].take(time.monotonic())
                continue
            message = told.recv()
            if message[0] == "stop":
                told.send([(way.link.name, way.carried_bytes, way.lost) for way in ways])
                return
            for way in ways:
                if way.link.name == message[1]:
                    way.up = message[0] == "mend"
        now = time.monotonic()
        due = min((at for way in ways if (at := way.deliver(now)) is not None), default=None)


def _wire(first: str, first_pid: str, second: str, second_pid: str, delay_ms: str, loss: str) -> None:
    link = Link(first, math.inf, float(delay_ms) / 1000, float(loss), 0)
    _, told = multiprocessing.Pipe()
    with contextlib.suppress(OSError):  # one of the networks ended, and its device with it
        carry({link: (tap(first, int(first_pid)), tap(second, int(second_pid)))}, told)


if __name__ == "__main__":
    _wire(*sys.argv[1:])

"""What accelerators can do, by their makers' figures, and what this computer can, measured: for plans of a trainer.

Owns `Machine` and how long a rank's work takes on one. Makers say what a kernel could reach at best; the three shares
below say what is counted on. They are assumptions, and the same for all accelerators: on one that is at hand, compare a
run's `step_s` with the plan. A machine can also be `fitted` to steps that were timed.
"""

from __future__ import annotations

import difflib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from etude.errors import ConfigError
from etude.rollouts.plan.amounts import GIB
from etude.rollouts.plan.rates import least_squares

if TYPE_CHECKING:
    from etude.trainer.mesh.counting import Link, Traffic, Work

PRODUCTS, MEMORY, LINKS = 0.6, 0.7, 0.7
"""The shares of its figures that a machine is taken to reach: of products, of its memory's bandwidth, of a link's."""
USABLE = 0.92
"""Of its memory: the rest is the driver's, the libraries', and lost between allocations."""
OVERLAPPED = ("gathers", "reduce-scatters", "replicas")
"""What FSDP exchanges while a block is computed, where the device can do both."""


@dataclass(frozen=True)
class Machine:
    """One accelerator, or this computer as one rank sees it."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """A second, of dense bf16 products."""
    fp32: float
    """A second, of fp32 products: torch rounds their operands to no shorter format unless it is told to."""
    bandwidth: float
    """Bytes a second of its memory."""
    inside: float
    """Bytes a second to others of its computer, one way."""
    between: float
    """Bytes a second to other computers."""
    together: int
    """How many a computer has, as a rule."""
    call_s: float = 4e-6
    """An operation takes no less, as somebody has to ask for it."""
    exchange_s: float = 2e-5
    """The same of an exchange."""
    overlaps: bool = True
    host: int | None = None
    """Bytes of the memory of each computer that has such accelerators; None: not known, or the same memory."""

    @property
    def usable(self) -> int:
        return int(USABLE * self.memory)

    @property
    def host_usable(self) -> int | None:
        return None if self.host is None else int(USABLE * self.host)

    def seconds(self, work: Work) -> float:
        """How long a rank takes for it."""
        products = (work.flops - work.fp32_flops) / self.flops + work.fp32_flops / self.fp32
        device = products / PRODUCTS + work.touched / (MEMORY * self.bandwidth)
        computing = max(device, work.calls * self.call_s) if self.overlaps else device + work.calls * self.call_s
        beside = sum(self._sent(link, each) for link, each in work.links.items() if link.kind in OVERLAPPED)
        waited = sum(self._sent(link, each) for link, each in work.links.items() if link.kind not in OVERLAPPED)
        return (max(computing, beside) if self.overlaps else computing + beside) + waited

    def _sent(self, link: Link, traffic: Traffic) -> float:
        rate = self.inside if self.is_inside(link) else self.between
        return traffic.bytes / (LINKS * rate) + traffic.calls * self.exchange_s

    def is_inside(self, link: Link) -> bool:
        """Whether all of a link's ranks are on one computer, where ranks fill one after the other."""
        return len({rank // self.together for rank in link.ranks}) <= 1


def _accelerator(
    name: str, gib: int, bf16: float, fp32: float, terabytes: float, inside: float, between: float, together: int = 8
) -> Machine:
    sent = inside * 1e9, between * 1e9
    return Machine(name, gib * GIB, bf16 * 1e12, fp32 * 1e12, terabytes * 1e12, *sent, together)


KNOWN: Mapping[str, Machine] = {
    each.name: each
    for each in (  # GiB, teraflop/s of dense bf16 and of fp32, TB/s, GB/s one way within a computer and out of it
        _accelerator("rtx-4090", 24, 165, 82.6, 1.01, 32, 3, together=1),
        _accelerator("a100", 80, 312, 19.5, 2.04, 300, 25),
        _accelerator("h100", 80, 989, 67, 3.35, 450, 50),
        _accelerator("h200", 140, 989, 67, 4.8, 450, 50),
        _accelerator("b200", 178, 2250, 75, 8.0, 900, 50),
        _accelerator("mi300x", 192, 1307, 163, 5.3, 448, 50),
    )
}
HERE = "cpu"
"""This computer's processors, measured."""


def machine_named(name: str, ranks: int = 1, host_gib: float | None = None) -> Machine:
    """Of the table, in computers of so much memory, or this computer shared by so many ranks. Raises ConfigError for a
    name that is neither.
    """
    if name == HERE:
        if host_gib is not None:
            raise ConfigError("--host-memory: is for accelerators, with --on; this computer's is measured")
        return this_computer(ranks)
    if name not in KNOWN:
        meant = difflib.get_close_matches(name.lower(), KNOWN, 1)
        asked = f" (did you mean {meant[0]}?)" if meant else ""
        raise ConfigError(f"--on {name}: no such accelerator is known{asked}; there are {', '.join(KNOWN)}, and {HERE}")
    return replace(KNOWN[name], host=None if host_gib is None else int(host_gib * GIB))


def this_computer(ranks: int = 1) -> Machine:
    """What one of so many ranks gets of it: of the memory that is free now, in this process's control group, and of
    its speed, measured on one thread for about half a second, whatever else it does.
    """
    from etude.engine.cache_size import available_bytes  # torch: whoever only plans a run loads none of it

    cores = len(os.sched_getaffinity(0))
    share = min(1.0, cores / ranks)
    loopback, products = _loopback() * share, share * _products() / PRODUCTS
    memory = available_bytes() // ranks
    return Machine(
        HERE, memory, products, products, share * _copying() / MEMORY, loopback / LINKS, loopback / LINKS,
        ranks, call_s=1e-5 / share, exchange_s=2e-4 / share, overlaps=False,
    )  # fmt: skip


def _products(size: int = 768) -> float:
    """Flop/s of one thread, in fp32, which its ranks compute in."""
    import torch  # here alone: whoever only plans a run loads none of it

    threads, one = torch.get_num_threads(), torch.randn(size, size)
    torch.set_num_threads(1)
    try:
        return 2 * size**3 / min(_timed(lambda: one @ one) for _ in range(5))
    finally:
        torch.set_num_threads(threads)


def _copying(count: int = 1 << 23) -> float:
    """Bytes a second of one thread, read and written."""
    one, other = np.ones(count, np.float32), np.empty(count, np.float32)
    return 8 * count / min(_timed(lambda: np.copyto(other, one)) for _ in range(5))


def _loopback(count: int = 1 << 24) -> float:
    """Bytes a second from one process to another of this computer."""

    def once() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            reader = threading.Thread(target=_drain, args=(theirs, count), daemon=True)
            reader.start()
            ours.sendall(bytes(count))
            reader.join(30)

    return count / min(_timed(once) for _ in range(3))


def _drain(line: socket.socket, count: int) -> None:
    while count > 0 and (some := line.recv(1 << 20)):
        count -= len(some)


def _timed(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def fitted(name: str, timed: Sequence[tuple[Work, float]], like: Machine) -> Machine:
    """A machine that takes as long as was measured for each of these: of what a rank computes, touches, asks for, sends
    and exchanges, the seconds that one of each costs (no cost below zero; products of all formats cost the same). What
    else it has is that of another.
    """
    known = np.array([_features(work) for work, _ in timed])
    wanted = np.array([seconds for _, seconds in timed])
    largest = np.maximum(known.max(0), 1.0)  # columns of one size, and below relative errors, so that none outweighs
    cost = least_squares(known / largest / wanted[:, None], np.ones(len(wanted))) / largest
    flop_s, byte_s, call_s, sent_s, exchange_s = map(float, cost)
    link, products = 1 / max(LINKS * sent_s, 1e-18), 1 / max(PRODUCTS * flop_s, 1e-18)
    return Machine(
        name, like.memory, products, products, 1 / max(MEMORY * byte_s, 1e-18), link, link, like.together, call_s,
        exchange_s, overlaps=False,
    )  # fmt: skip


def _features(work: Work) -> tuple[float, ...]:
    sent = [(each.bytes, each.calls) for each in work.links.values()]
    return (
        work.flops,
        work.touched,
        float(work.calls),
        float(sum(one for one, _ in sent)),
        float(sum(n for _, n in sent)),
    )

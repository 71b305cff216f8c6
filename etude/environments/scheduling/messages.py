"""What node agents, the server and the scheduler say to each other.

Owns the records only: plain, frozen, of strings and numbers, so that any transport carries them. Node agents send
`Hello`, `Heartbeat`, `Placed` and `Ended`; the scheduler answers with `PlaceSandbox`, `KillSandbox` and `AskHello`;
whoever asked for a sandbox reads `Notice`. Never sends anything itself.

Rules of the conversation, which the accounting rests on:
  - A node numbers what it sends (`seq`, rising within one `incarnation`, which changes when its agent restarts). A
    heartbeat that lacks a sandbox says something only about sandboxes acknowledged before it.
  - Orders to a node arrive in order or not at all. Both orders are idempotent: `PlaceSandbox` and `KillSandbox` of a
  sandbox already
    placed or gone are answered again with `Placed` and `Ended`, so either may be repeated.
  - `Hello` lists the orders of every living sandbox, so a scheduler that lost its memory gets it back from the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from etude.environments.base import Resources
from etude.records import InfraFailed

Priority: TypeAlias = Literal["interactive", "training"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "training")
"""Highest first."""

Isolation: TypeAlias = Literal["namespace", "container", "vm"]


def image_key(image: str) -> str:
    """The name under which a node says it holds an image."""
    return f"image/{image}"


def snapshot_key(snapshot: str) -> str:
    """The name under which a node says it holds a snapshot."""
    return f"snapshot/{snapshot}"


@dataclass(frozen=True, slots=True)
class Request:
    """One sandbox somebody wants. The same `id` again means the same sandbox, never a second one."""

    id: str
    tenant: str
    priority: Priority = "training"
    resources: Resources = field(default_factory=Resources)
    backend: str | None = None
    """A backend by name, or any."""
    isolation: Isolation | None = None
    """Exactly this isolation, or any. Never weakened, and nothing is assumed about which is stronger."""
    image: str = "host"
    """"host" is on every node; any other is fetched where it is not held."""
    snapshot: str | None = None
    """Start from this state: a fork."""
    snapshot_stored: bool = False
    """Whether the snapshot is in the object store too, and so outlives the nodes that hold it."""
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A backend that passed its probe on a node."""

    backend: str
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class Pressure:
    """How hard a node works now. Shares are of what the node gives to sandboxes, 0 to 1 (CPU may pass 1).

    The rest are PSI's avg10 in percent: the time some, or all, runnable tasks stood still for want of the resource.
    """

    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    cpu_some: float = 0.0
    memory_some: float = 0.0
    memory_full: float = 0.0
    io_some: float = 0.0
    io_full: float = 0.0


# --- scheduler to node -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """Something the node lacks and must get before the start."""

    key: str
    source: str | None
    """The node to get it from; None: the object store."""


@dataclass(frozen=True, slots=True)
class PlaceSandbox:
    """Make this sandbox. `resume` hands a warm one, already running under `sandbox`, to the request."""

    sandbox: str
    node: str
    action: Literal["create", "fork", "resume"]
    request: Request
    backend: str
    fetch: tuple[Fetch, ...] = ()
    warm: bool = False
    """A sandbox for a warm pool; `request` is then the pool's pattern, and nobody waits for it."""


@dataclass(frozen=True, slots=True)
class KillSandbox:
    """End this sandbox, whatever state it is in, and answer `Ended`."""

    sandbox: str
    node: str
    why: str


@dataclass(frozen=True, slots=True)
class AskHello:
    """The scheduler does not know this node, or not this incarnation of it."""

    node: str


Command: TypeAlias = PlaceSandbox | KillSandbox | AskHello


# --- node to scheduler -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A node introduces itself: on start, and when asked."""

    node: str
    incarnation: int
    seq: int
    resources: Resources
    """What it gives to all sandboxes together; `pids` is not used."""
    offers: tuple[Offer, ...]
    start_slots: int = 4
    """Starts it does at once without each slowing the others."""
    sandboxes: tuple[PlaceSandbox, ...] = ()
    """The order of every sandbox that exists on it; those still being made are left out."""
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node lives. Lists are left out (None) from most heartbeats, to keep them cheap."""

    node: str
    incarnation: int
    seq: int
    pressure: Pressure
    sandboxes: tuple[str, ...] | None = None
    """The ids of all that exist on it; those still being made are left out."""
    holds: tuple[str, ...] | None = None
    draining: bool = False
    """It wants no new sandboxes."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A start ended: ready, or `failed` says why not."""

    node: str
    incarnation: int
    seq: int
    sandbox: str
    failed: str | None = None
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """A sandbox is gone from a node, with all it used."""

    node: str
    incarnation: int
    seq: int
    sandbox: str
    why: Literal["killed", "crashed"] = "killed"


# --- scheduler to whoever asked --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    """A request changed state. In order, one a change: the structured event, and what wakes a waiting caller."""

    request: str
    state: str
    at: float
    node: str | None = None
    sandbox: str | None = None
    why: str = ""
    failure: InfraFailed | None = None
    """Set in state `failed`: what the trajectory's outcome will be."""

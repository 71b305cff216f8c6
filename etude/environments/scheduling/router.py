"""Several clusters behind one door.

Owns `Router`. Chooses a cluster for each request and remembers which, so that the same id goes the same way again; all
else is the cluster's. A request that needs a snapshot goes where that is held. Otherwise two clusters are drawn and the
less loaded is taken, for the same reason as with nodes; one that would refuse is passed over while another would not.
Training spread over several clusters goes on when one of them is lost (`set_up`): new requests go elsewhere, those it
has are its own, and it answers for them when it is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from etude.environments.scheduling.ledger import Ticket
from etude.environments.scheduling.messages import Request, snapshot_key
from etude.environments.scheduling.scheduler import Scheduler
from etude.errors import ConfigError, SandboxError


class Router:
    """Sends requests to clusters. Clusters are schedulers; those named in `down` get nothing new."""

    def __init__(self, clusters: Mapping[str, Scheduler], seed: int = 0) -> None:
        if not clusters:
            raise ConfigError("clusters: none is configured, so nothing could be placed")
        self.clusters = dict(clusters)
        self.down: set[str] = set()
        self._where: dict[str, str] = {}
        self._rng = Random(seed)
        self._sweep_at = 10_000

    def set_up(self, cluster: str, up: bool) -> None:
        """Whether a cluster can be reached."""
        (self.down.discard if up else self.down.add)(cluster)

    def submit(self, request: Request, now: float) -> tuple[str, Ticket]:
        """The cluster that took the request, and its ticket there. Raises SandboxError when none can be reached."""
        known = self._where.get(request.id)
        if known is not None and self.clusters[known].knows(request.id):
            return known, self.clusters[known].submit(request, now)
        chosen = self._choose(request, now)
        ticket = self.clusters[chosen].submit(request, now)
        if ticket.refusal is None:  # a refused one may go elsewhere when it is asked again
            self._where[request.id] = chosen
            self._forget()
        return chosen, ticket

    def cluster_of(self, request_id: str) -> Scheduler:
        """Where a request is. Raises SandboxError for an unknown one."""
        known = self._where.get(request_id)
        if known is None:
            raise SandboxError(f"no request {request_id} is known here; it ended long ago or was never made")
        return self.clusters[known]

    def _choose(self, request: Request, now: float) -> str:
        reachable = [name for name in self.clusters if name not in self.down]
        if not reachable:
            raise SandboxError(
                f"none of the clusters {', '.join(self.clusters)} can be reached; try again when one can"
            )
        if request.snapshot is not None:
            key = snapshot_key(request.snapshot)
            holding = [name for name in reachable if self.clusters[name].fleet.held(key)]
            reachable = holding or reachable
        willing = [name for name in reachable if self.clusters[name].refusal(request, now) is None] or reachable
        drawn = self._rng.sample(willing, min(2, len(willing)))
        return min(drawn, key=lambda name: self.clusters[name].load(request.priority))

    def _forget(self) -> None:
        """Drop ids their clusters have forgotten, each time the map has doubled."""
        if len(self._where) < self._sweep_at:
            return
        self._where = {known: name for known, name in self._where.items() if self.clusters[name].knows(known)}
        self._sweep_at = max(10_000, 2 * len(self._where))

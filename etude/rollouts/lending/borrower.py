"""When a run borrows engines of the product's servers, and when it gives them back.

Owns the policy (`decide`: few users for a while, borrow one; more users than those that serve them should have, give
back as many as it takes at once) and the loans of a run. Users are served in any case: a request to a lent server
recalls its engine whatever this decides, and should this process die the leases run out. An engine that is given back
leaves the fleet first, so that sessions are on their way elsewhere while its users' weights go in. Implements
`fleet.Lender`; nothing else of the run knows of it. Talks to: loan_link (the servers), and the fleet.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etude.deadlines import scaled
from etude.errors import ConfigError, EtudeError
from etude.rollouts.config import BorrowingConfig
from etude.rollouts.fleet import Fleet
from etude.rollouts.lending.loan_link import LendingServer, LoanLink, Refused
from etude.rollouts.links import FleetEngine

_LEND_S = 60.0
"""For a server to keep its users' weights aside."""
_AVOIDED_S = 30.0
_POLL_S = 0.25
"""How often the servers are asked for their load: far more often than `STEADY_S` counts."""
STEADY_S = 5.0
"""For how long the traffic must have been low before one is borrowed: each server has `lending.quiet_s` beside it."""
APART = 2.0
"""Some are given back at so many times the load that one is borrowed below: nearer to it they would go to and fro."""


@dataclass(frozen=True)
class ServerStatus:
    """What a server said of itself. `lent` to whomever, `ours` to this run; `willing` to be lent."""

    url: str
    users: int
    lent: bool
    ours: bool
    willing: bool


@dataclass(frozen=True)
class Decision:
    """Which server to borrow from, and which to give back."""

    borrow: str | None = None
    give_back: tuple[str, ...] = ()


def decide(servers: Sequence[ServerStatus], config: BorrowingConfig, low_s: float) -> Decision:
    """`low_s` is for how long the traffic has been low enough to borrow one (`is_low`)."""
    users, serving = sum(each.users for each in servers), sum(not each.lent for each in servers)
    wanted = max(math.ceil(users / (APART * config.borrow_below)), min(config.keep, len(servers)))
    if wanted > serving:
        ours = [each for each in servers if each.ours]
        waiting_first = sorted(ours, key=lambda each: -each.users)
        return Decision(give_back=tuple(each.url for each in waiting_first[: wanted - serving]))
    if is_low(servers, config) and low_s >= STEADY_S:
        return Decision(borrow=next((each.url for each in servers if each.willing and not each.lent), None))
    return Decision()


def is_low(servers: Sequence[ServerStatus], config: BorrowingConfig) -> bool:
    """Whether one server fewer would still do for the users that there are."""
    users, left = sum(each.users for each in servers), sum(not each.lent for each in servers) - 1
    if left < config.keep or left < 0:
        return False
    return users == 0 if left == 0 else users / left < config.borrow_below


class Borrower:
    """Use on one event loop: `run` it until it is cancelled, then `close` it."""

    def __init__(self, config: BorrowingConfig, asking: dict[str, str], fleet: Fleet) -> None:
        """`asking` is what every loan is asked for with: borrower, store, expert_format."""
        self.config, self._asking, self._fleet = config, asking, fleet
        self.counters: Counter[str] = Counter()
        self.longest_return_s = 0.0
        """Of those that this run gave back, from the decision until users were served."""
        self.heard: dict[str, dict[str, Any]] = {}
        """What each server said last."""
        self._servers = {url: LendingServer(url, config.token_file) for url in config.urls}
        self._ours: dict[str, FleetEngine] = {}
        self._avoided: dict[str, float] = {}
        """Servers whose engines were of no use, and until when none is asked of them."""
        self._low_since: float | None = None
        self._returning: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(_POLL_S)

    async def look(self, now: float) -> None:
        """Ask every server once, and act on it. One that does not answer serves nobody, and is lent nothing."""
        answers = await asyncio.gather(*map(self._ask, self._servers.values()))
        seen = [each for each in answers if each is not None]
        if not is_low(seen, self.config):
            self._low_since = None
        elif self._low_since is None:
            self._low_since = now
        decision = decide(seen, self.config, 0.0 if self._low_since is None else now - self._low_since)
        for url in decision.give_back:
            self._give_back(url)
        if decision.borrow is not None:
            await self._borrow(decision.borrow)

    async def close(self) -> None:
        """Give back what is lent; users have all servers again."""
        for url in list(self._ours):
            self._give_back(url)
        await asyncio.gather(*self._returning, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    def summary(self) -> dict[str, Any]:
        """What the servers were used for, by both sides, and how soon they were back."""
        return {**self.counters, "uses": self._used(), "longest_giving_back_s": self.longest_return_s}

    def _used(self) -> dict[str, dict[str, float]]:
        """What the servers' engines were for since they started, and how busy with it: seconds and share by use."""
        total: dict[str, Counter[str]] = {}
        for told in self.heard.values():
            for use, figures in told["uses"].items():
                total.setdefault(use, Counter()).update(figures)
        return {
            use: {"seconds": each["seconds"], "busy": each["busy_s"] / max(each["seconds"], 1e-9)}
            for use, each in total.items()
        }

    async def _ask(self, server: LendingServer) -> ServerStatus | None:
        try:
            told = self.heard[server.url] = await server.get("/lending", "tell what its engine is for")
        except EtudeError:
            self.counters["servers_unreachable"] += 1
            return None
        engine, lent = self._ours.get(server.url), told["state"] != "serving"
        if engine is not None and (engine.gone or told["state"] != "lent"):
            self._recalled(server.url, engine)
        willing = told["refusal"] is None and self._avoided.get(server.url, 0.0) < time.monotonic()
        return ServerStatus(server.url, told["users"], lent, server.url in self._ours, willing)

    def _recalled(self, url: str, engine: FleetEngine) -> None:
        """It went without our doing."""
        del self._ours[url]
        self._fleet.remove(engine, "its users took it back")
        self.counters["engines_recalled"] += 1
        if engine.serving_since is None:
            self._avoided[url] = time.monotonic() + _AVOIDED_S

    async def _borrow(self, url: str) -> None:
        server = LendingServer(url, self.config.token_file)
        try:
            told = await server.post("/loan", "lend its engine", scaled(_LEND_S), self._asking)
        except Refused as error:
            await server.close()
            if error.code != "not_lent":
                raise ConfigError(f"fleet.lending.urls: {error}") from None
            self.counters["loans_refused"] += 1
            return
        except EtudeError:
            await server.close()
            return
        self.counters["engines_borrowed"] += 1
        name = f"lent-{self.counters['engines_borrowed']}"
        link = LoanLink(name, server, told["lease"], told["lease_s"], told["return_s"])
        self._low_since = None  # one at a time: the others must bear it first
        self._ours[server.url] = self._fleet.add(link)

    def _give_back(self, url: str) -> None:
        engine = self._ours.pop(url)
        self._fleet.remove(engine, "its users need it")
        self.counters["engines_given_back"] += 1
        task = asyncio.ensure_future(self._returned(engine))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _returned(self, engine: FleetEngine) -> None:
        began = time.monotonic()
        try:
            await engine.link.close()
        except EtudeError:  # a user was quicker, or the server is not there: its lease runs out
            return
        self.longest_return_s = max(self.longest_return_s, time.monotonic() - began)

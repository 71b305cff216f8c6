"""A cluster on bare machines: started, looked at and ended over ssh, all machines at a time.

Owns the order of things and what is said of a machine that is not as it should be. The head is up before others join
it. Nothing runs here in between, and nothing is remembered but the token: what there is, the machines say. Talks to:
ssh.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from etude.deadlines import scaled
from etude.errors import ConfigError, DeadlineExceeded, EtudeError
from etude.rollouts.machines.bare_config import BareConfig, MachineConfig
from etude.rollouts.machines.config import OBJECT_STORE_BYTES
from etude.rollouts.machines.ssh import Unreached, ask

ASK_S = 30.0
"""For ssh to connect and Python to look at the processes there, or at Ray's table."""
START_S, STOP_S, JOIN_S = 120.0, 40.0, 60.0
_LOOK_S = 0.5
_AGAIN = "`etude cluster up` starts it"
_ROOM = ("memory", "object_store_memory")
"""What Ray says of a machine's own memory, in bytes."""
State = Literal["alive", "dead", "stopped", "unreachable", "unknown"]


@dataclass(frozen=True)
class MachineStatus:
    """One machine, as it and the head see it."""

    address: str
    is_head: bool
    state: State
    """alive: its processes are there and Ray counts on it. dead: one of the two is not so. stopped: neither is.
    unreachable: ssh gets no answer. unknown: Etude cannot be asked there, or its processes are there and the head says
    nothing."""
    processes: int | None = None
    """Of Ray, on the machine; None: it did not say."""
    resources: dict[str, float] = field(default_factory=dict)
    """That Ray gives away there; none where Ray does not count on it."""
    why: str = ""
    """What is wrong, and what to do."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class BareCluster:
    """The machines of one file of `etude cluster`."""

    def __init__(self, config: BareConfig) -> None:
        self.config = config

    async def up(self) -> list[MachineStatus]:
        """Start what does not run yet; returns when Ray counts on every machine. Raises what is wrong with one: those
        that were started go on, and another `up` takes up from there.
        """
        token, env, files = self.config.token(), self.config.variables(), self.config.contents()
        alike(await self._all("look", {}, ASK_S))
        given = {
            "token": token, "env": env, "seconds": scaled(START_S),
            "files": {there: base64.b64encode(content).decode() for there, content in files.items()},
        }  # fmt: skip
        head = await self._all("start", {**given, "anew": False}, START_S + STOP_S, (self.config.head,))
        given["anew"] = head[self.config.head.address]["began"]  # nobody can go on under another head
        await self._all("start", given, START_S + STOP_S, self.config.machines[1:])
        return await self._joined()

    async def status(self) -> list[MachineStatus]:
        """Of every machine, whatever is wrong with it, within one deadline for all of them."""
        looks = await self._answers("look", {}, ASK_S, self.config.machines)
        for each in looks:
            if isinstance(each, BaseException) and not isinstance(each, EtudeError):
                raise each
        pairs = zip(self.config.machines, looks, strict=True)
        return [status_of(machine, machine is self.config.head, look, looks[0]) for machine, look in pairs]

    async def down(self) -> dict[str, int]:
        """End all of the cluster's processes; returns how many there were on each machine. All machines that answer
        are seen to before what is wrong with another is raised. The head is last, so that nothing dies for want of it.
        """
        ended: dict[str, int] = {}
        wrong: list[BaseException] = []
        for machines in (self.config.machines[1:], (self.config.head,)):
            answers = await self._answers("stop", {}, STOP_S + ASK_S, machines)
            for machine, said in zip(machines, answers, strict=True):
                if isinstance(said, BaseException):
                    wrong.append(said)
                else:
                    ended[machine.address] = said["ended"]
        _raise(wrong)
        return ended

    async def _joined(self) -> list[MachineStatus]:
        """Until all machines are alive."""
        end = time.monotonic() + scaled(JOIN_S)
        while True:
            found = await self.status()
            missing = [each for each in found if each.state != "alive"]
            if not missing:
                return found
            if time.monotonic() > end:
                what = f"Ray to count on {', '.join(each.address for each in missing)}"
                raise DeadlineExceeded(what, scaled(JOIN_S), missing[0].why)
            await asyncio.sleep(_LOOK_S)

    async def _all(
        self, verb: str, more: dict[str, Any], seconds: float, machines: Sequence[MachineConfig] | None = None
    ) -> dict[str, dict[str, Any]]:
        """What each answers, by its address. Raises what is wrong with any, when all have answered."""
        asked = self.config.machines if machines is None else machines
        answers = await self._answers(verb, more, seconds, asked)
        _raise([said for said in answers if isinstance(said, BaseException)])
        return {machine.address: said for machine, said in zip(asked, answers, strict=True)}

    async def _answers(
        self, verb: str, more: dict[str, Any], seconds: float, machines: Sequence[MachineConfig]
    ) -> list[Any]:
        """What each says, or what was raised in its place: all are asked side by side, and seen to."""
        asked = (self._ask(each, verb, more, seconds) for each in machines)
        return await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, machine: MachineConfig, verb: str, more: dict[str, Any], seconds: float) -> dict[str, Any]:
        config = self.config
        request = {
            "verb": verb, "mark": f"{config.name}@{machine.address}", "directory": config.directory,
            "url": config.url, "is_head": machine is config.head, "seconds": scaled(STOP_S), **more,
        }  # fmt: skip
        if verb == "start":
            request["options"] = _options(config, machine)
        return await ask(config, machine, request, scaled(seconds))


def _raise(wrong: Sequence[BaseException]) -> None:
    """What is wrong with each machine, all at once: so that none is found only when another is mended."""
    for each in wrong:
        if len(wrong) == 1 or not isinstance(each, EtudeError):
            raise each
    if wrong:
        kind = ConfigError if all(isinstance(each, ConfigError) for each in wrong) else EtudeError
        raise kind("; ".join(map(str, wrong)))


def _options(config: BareConfig, machine: MachineConfig) -> list[str]:
    """Of `ray start` on a machine."""
    place = ("--head", f"--port={config.port}", "--include-dashboard=false")
    return [
        *(place if machine is config.head else (f"--address={config.url}",)),
        f"--node-ip-address={machine.address}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--resources={json.dumps(machine.resources)}",
        *(() if machine.cpus is None else (f"--num-cpus={machine.cpus}",)),
    ]


def alike(looks: dict[str, dict[str, Any]]) -> None:
    """Ray joins none of another version, and neither do we."""
    for what in ("etude", "ray", "python"):
        of = {look[what]: address for address, look in looks.items()}
        if len(of) > 1:
            (one, here), (other, there), *_ = of.items()
            raise ConfigError(
                f"machines: {here} has {what} {one}, and {there} has {other}; install the same on all of them"
            )


def status_of(machine: MachineConfig, is_head: bool, look: Any, of_head: Any) -> MachineStatus:
    """What a machine says of itself, and what Ray's table on the head has of it, in one word."""

    def state(word: State, why: str = "", resources: dict[str, float] | None = None) -> MachineStatus:
        processes = None if isinstance(look, BaseException) else look["processes"]
        return MachineStatus(machine.address, is_head, word, processes, resources or {}, why)

    if isinstance(look, BaseException):
        return state("unreachable" if isinstance(look, Unreached) else "unknown", str(look))
    table, silence = _table_of(of_head)
    entry = table.get(machine.address)
    counted = entry is not None and entry["alive"]
    if not look["raylet"]:
        if look["processes"] or counted:
            return state("dead", f"Ray has ended there; {_AGAIN}")
        return state("stopped", f"nothing of the cluster runs there; {_AGAIN}")
    if silence:
        return state("dead" if is_head else "unknown", f"{silence}; {_AGAIN}")
    if not counted and is_head and len(table) == 1 and entry is None:
        return state("dead", f"Ray knows it as {min(table)}; give that as its address, then `etude cluster up`")
    if not counted:
        return state("dead", f"Ray has {'given it up' if entry else 'not heard of it'}, so it ends by itself; {_AGAIN}")
    names = {name: amount for name, amount in entry["resources"].items() if not name.startswith("node:")}
    return state("alive", resources={name: names[name] for name in sorted(names) if name not in _ROOM})


def _table_of(of_head: Any) -> tuple[dict[str, Any], str]:
    """Ray's table, or why it is not known."""
    if isinstance(of_head, BaseException):
        return {}, "the head cannot be asked whether it counts on it"
    if "table" in of_head:
        return of_head["table"], ""
    return {}, of_head.get("silent", "the head's own process has ended, and with it the cluster")

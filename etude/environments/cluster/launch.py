"""Starts a cluster of sandboxes on the machines of a Ray, and stops it.

Owns which actors there are. The process that starts a cluster holds it: when that ends, so do the scheduler, the agents
and, with them, every sandbox. Ray must have been joined before (`ray.init`). Machines that join Ray later are taken in
by `add_machines`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from etude.environments.cluster.actors import AgentActor, SchedulerActor
from etude.environments.cluster.calls import NAMESPACE, agent_name, call_within, scheduler_name
from etude.environments.cluster.settings import AgentConfig, ServiceConfig
from etude.errors import ConfigError, EtudeError

_START_S = 120.0
_STOP_S = 60.0


class Launched:
    """A cluster that runs. Make one with `launch`; whoever did closes it."""

    def __init__(self, name: str, agent: AgentConfig, service: ServiceConfig) -> None:
        """Every machine's agent is started with the same config."""
        self.name, self.config = name, agent
        options = {"name": scheduler_name(name), "namespace": NAMESPACE}
        try:
            self.scheduler = SchedulerActor.options(**options).remote(service)
        except ValueError:  # what Ray says of a name that is taken
            raise ConfigError(f"name: a cluster {name!r} runs on this Ray already; give this one another") from None
        self.agents: dict[str, Any] = {}

    async def add_agent(self, node: str, config: AgentConfig, machine: str) -> None:
        """Start an agent called `node` on the machine with this id in Ray; returns when its backends are open."""
        agent = AgentActor.options(
            name=agent_name(self.name, node),
            namespace=NAMESPACE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        ).remote(node, config, self.name)
        await call_within(agent.ping.remote(), _START_S, f"the agent of {node} to open its sandbox backends")
        self.agents[node] = agent

    async def add_machines(self) -> list[str]:
        """Start an agent on every machine of this Ray that has none; returns their names."""
        # by address: Ray names a machine anew each time, and an agent is to find what the one before it has left
        alive = {each["NodeManagerAddress"]: each["NodeID"] for each in ray.nodes() if each["Alive"]}
        added = [node for node in alive if node not in self.agents]
        await asyncio.gather(*(self.add_agent(node, self.config, alive[node]) for node in added))
        return added

    async def close(self) -> None:
        """End every sandbox, then the agents, then the scheduler."""
        closing = (
            call_within(agent.close.remote(), _STOP_S, f"the agent of {node} to end its sandboxes")
            for node, agent in self.agents.items()
        )
        ended = await asyncio.gather(*closing, return_exceptions=True)
        for each in (*self.agents.values(), self.scheduler):
            ray.kill(each, no_restart=True)
        for error in ended:
            if isinstance(error, EtudeError):
                raise error


async def launch(name: str, agent: AgentConfig, service: ServiceConfig) -> Launched:
    """Start a cluster with an agent on every machine of this Ray."""
    cluster = Launched(name, agent, service)
    try:
        await cluster.add_machines()
    except BaseException:
        await cluster.close()
        raise
    return cluster

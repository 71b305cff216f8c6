"""A Ray of the tests' own, with a cluster of two agents on it that take this machine for two."""

import asyncio
import time

import pytest
import ray
from cluster_machines import machine, serving
from ray.exceptions import RayError

from etude.environments.cluster.config import ClusterConfig
from etude.environments.cluster.launch import Launched
from etude.environments.cluster.settings import AgentConfig
from etude.environments.scheduling.queues import QueueConfig
from etude.rollouts.own_ray import start_ray, stop_ray


class Pair:
    """A cluster of the machines `left` and `right`, each with room for two small sandboxes."""

    def __init__(self, directory):
        self.configs = {name: machine(directory / name) for name in ("left", "right")}
        self.launched = None
        self.pids = {}

    async def start(self, here):
        queues = QueueConfig(limits={"interactive": 10, "training": 6})
        self.launched = Launched("pair", AgentConfig(), serving(queues=queues))
        adding = (self.launched.add_agent(name, config, here) for name, config in self.configs.items())
        await asyncio.gather(*adding)
        for name in self.configs:
            self.pids[name] = [await self.pid(name)]

    async def pid(self, name):
        """Of an agent's process."""
        return await self.launched.agents[name].pid.remote()

    async def pid_of_the_next(self, name, within_s=60.0):
        """Of the process that takes the place of a killed agent's, once it is there."""
        end = time.monotonic() + within_s
        while True:
            try:
                return await self.pid(name)
            except RayError:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(0.1)

    def asking(self, **given):
        waits = {name: given.pop(name) for name in ("start_s", "open_s", "priority") if name in given}
        return type("Asked", (ClusterConfig,), {"__module__": __name__, **waits})(name="pair", **given)


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory):
    """Ray, on this machine alone; gives the machine's id in it."""
    directory = tmp_path_factory.mktemp("ray")
    variables = {"OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        start_ray(directory, variables, object_store_memory=100 << 20)
    try:
        yield ray.nodes()[0]["NodeID"]
    finally:
        stop_ray(directory)


@pytest.fixture(scope="module")
def pair(ray_here, tmp_path_factory):
    two = Pair(tmp_path_factory.mktemp("pair"))
    asyncio.run(two.start(ray_here))
    yield two
    asyncio.run(two.launched.close())

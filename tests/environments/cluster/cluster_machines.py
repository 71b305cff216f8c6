"""Machines for the tests of a cluster: small, quick to notice, and blind to what else this machine is busy with."""

import asyncio
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from etude.environments.base import Resources
from etude.environments.cluster.settings import AgentConfig, ServiceConfig
from etude.environments.leftovers import leftovers
from etude.environments.lives import NodeConfig
from etude.environments.namespace import NamespaceConfig
from etude.environments.scheduling.fleet import FleetConfig
from etude.environments.scheduling.scheduler import SchedulerConfig

SMALL = Resources(memory_mb=256, pids=64, cpus=0.5, disk_mb=32)
UNMOVED = FleetConfig(
    max_memory=2, max_disk=2, max_cpu_some=101, max_memory_some=101, max_memory_full=101, max_io_full=101
)
"""No pressure keeps sandboxes away: what else runs here is not the test's subject."""


def scheduling(recover_s=3.0, **given):
    return SchedulerConfig(snapshots_move=False, recover_s=recover_s, **{"fleet": UNMOVED, **given})


def serving(**given):
    return ServiceConfig(scheduler=scheduling(**given))


def machine(directory: Path, memory_mb=512, **given) -> AgentConfig:
    """One with room for two small sandboxes."""
    sandboxes = NamespaceConfig(state_dir=directory / "sandboxes")
    node = NodeConfig(state_dir=directory / "state", backends=(sandboxes,), **given)
    return AgentConfig(node=node, memory_mb=memory_mb, cpus=2.0, disk_mb=1000, heartbeat_s=0.2, list_every=2)


def left_by(config: AgentConfig, pids, within_s=90.0):
    """What processes of these numbers have left of sandboxes, once what is ending has had its time."""
    (sandboxes,) = config.node.backends
    mine = re.compile(rf"\b({'|'.join(map(str, pids))})-\d+-[0-9a-f]{{8}}-")  # as instances are named
    end = time.monotonic() + within_s
    while (found := [line for line in leftovers(sandboxes) if mine.search(line)]) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def kill_guest(inner):
    """The guest agent of a sandbox, by the name its backend gives it."""
    found = subprocess.run(["pgrep", "-f", f"serve .* {inner}$"], capture_output=True, timeout=120)
    assert found.stdout
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


async def until(what, condition, within_s=90.0):
    """Wait for a condition, which may be a coroutine function."""
    end = time.monotonic() + within_s
    while True:
        met = condition()
        if asyncio.iscoroutine(met):
            met = await met
        if met:
            return met
        assert time.monotonic() < end, f"waited {within_s} s for {what}"
        await asyncio.sleep(0.02)

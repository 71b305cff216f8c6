"""Commands that leave their agent no processor: where it misses a deadline it is known whose doing that was. They get a
small share, which a busy machine has to give too. What the host does to an agent is ours.
"""

import os
import signal

import pytest
from nobody import as_nobody
from scenarios import within

from etude.environments.base import Resources, SandboxSpec
from etude.environments.docker.backend import DockerBackend
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.qemu.backend import QemuBackend
from etude.errors import DeadlineExceeded, SandboxSpoiled

SPIN = "for i in 1 2 3 4 5 6 7 8; do (exec >/dev/null 2>&1; while :; do :; done) & done"
LARGE = bytes(60_000_000)
SHORT_S = 0.05
"""Too few seconds for a large file in a small share of a processor."""


def hurried(config, file_timeout_s=SHORT_S):
    """The same, with less patience for a file."""
    return type("Hurried", (type(config),), {"__module__": __name__, "file_timeout_s": file_timeout_s})(**dict(config))


async def late(backend):
    box = await backend.create(SandboxSpec(resources=Resources(cpus=0.2)))
    await box.exec(SPIN)
    while True:  # until the commands spin, and this machine has their share to give
        try:
            await box.write_file("/tmp/large", LARGE)
        except DeadlineExceeded:
            continue
        except SandboxSpoiled as error:
            return str(error)


async def stopped(backend, pid_of):
    box = await backend.create(SandboxSpec())
    os.kill(await pid_of(box), signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        await box.write_file("/tmp/large", LARGE)


def is_theirs(said):
    return "takes every processor" in said


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_in_a_container(container_config, whose):
    async def pid_of(box):
        shown = await box._host.engine.ask("GET", f"/containers/{box._container}/json", "show a container")
        return shown["State"]["Pid"]

    async def scenario(backend):
        if whose == "ours":
            return await stopped(backend, pid_of)
        assert is_theirs(await late(backend))

    within(120, lambda: DockerBackend(hurried(container_config)), scenario)


@pytest.mark.proof(5)
@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_in_a_machine(machine_config, whose):
    async def pid_of(box):
        return box._machine.pid

    async def scenario(backend):
        if whose == "ours":
            return await stopped(backend, pid_of)
        assert is_theirs(await late(backend))

    within(280, lambda: QemuBackend(hurried(machine_config, 2.0)), scenario)


def test_what_a_sandbox_may_leave_is_waited_for_and_so_is_laying_it_down():
    """However long a file is: a slow disk, or one that others use, must not make a rollout nobody's."""

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("yes | head -c 40000000 > a")
        with pytest.raises(DeadlineExceeded):
            await box.write_file("/tmp/large", LARGE)
        left = (await box.part("/workspace")).tar
        assert len(left) > 40_000_000
        fresh = await backend.create(SandboxSpec())
        await fresh.upload(left, "/workspace")
        assert (await fresh.exec("stat -c %s a")).output == b"40000000\n"

    within(60, lambda: NamespaceBackend(hurried(NamespaceConfig(), 0.001)), scenario)


WITHOUT_ROOT = """
import asyncio, sys
from pathlib import Path
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from test_starved_agents import hurried, late

async def main():
    here = Path(sys.argv[1])
    backend = NamespaceBackend(hurried(NamespaceConfig(limits="rlimit", state_dir=here / "state")))
    try:
        print(await late(backend))
    finally:
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
@pytest.mark.proof(6)
def test_in_a_sandbox_made_without_root():
    assert is_theirs(as_nobody(WITHOUT_ROOT, deadline_s=180))

"""No command can end, slow, stop or falsify what serves its sandbox: each attempt on each backend that runs here."""

import asyncio
import os

import pytest
from engine_stand_in import StandIn
from nobody import as_nobody
from on_process_one import ATTEMPTS
from process_one import SPEC, outlived
from scenarios import within

from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.local import open_workspace

SPOILING = {"nobody may be stopped"}
"""What may make a sandbox useless on backends that stop processes by signals; it then says that commands did it."""


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_in_a_namespace(run, attempt):
    async def scenario(backend):
        assert await outlived(await backend.create(SPEC), attempt) is None

    run(scenario, deadline_s=90)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_in_a_machine(machines, attempt):
    async def scenario(backend):
        assert await outlived(await backend.create(SPEC), attempt) is None or attempt in SPOILING

    machines(scenario)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_in_a_container(tmp_path, attempt):
    async def scenario(backend):
        assert await outlived(await backend.create(SPEC), attempt) is None or attempt in SPOILING

    with StandIn(tmp_path / "engine.sock") as engine:
        within(90, lambda: DockerBackend(DockerConfig(socket=engine.server_address, image="machine")), scenario)


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_in_the_workspace_of_the_product(tmp_path, attempt):
    (tmp_path / "kept").write_bytes(b"k")

    async def scenario():
        box = await open_workspace(tmp_path)
        try:
            async with asyncio.timeout(90):
                assert await outlived(box, attempt, snapshots=False) is None or attempt in SPOILING
        finally:
            await box.destroy()

    asyncio.run(scenario())


ALL = """
import asyncio, sys
from pathlib import Path
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from process_one import SPEC, every_attempt

async def main():
    here = Path(sys.argv[1])
    backend = NamespaceBackend(NamespaceConfig(state_dir=here / "state", cache_dir=here / "cache", limits="rlimit"))
    try:
        print(*await every_attempt(lambda: backend.create(SPEC)), sep="\\n", end="")
    finally:
        await backend.close()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_without_root():
    assert as_nobody(ALL, deadline_s=280) == ""

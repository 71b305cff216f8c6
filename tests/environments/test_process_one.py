"""No command can end, slow, stop or falsify what serves its sandbox: each attempt on each backend that runs here."""

import asyncio

import pytest
from on_process_one import ATTEMPTS
from process_one import SPEC, outlived
from proofs import one_of_each

from etude.environments.base import Resources, SandboxSpec
from etude.environments.local import open_workspace
from etude.errors import SandboxSpoiled

SPOILING = {"nobody may be stopped"}
"""What may make a sandbox useless on backends that stop processes by signals; it then says that commands did it."""
SLOWER = [
    pytest.param(place, marks=pytest.mark.proof(seconds))
    for place, seconds in {"without_root": 0.6, "containers": 1, "machines": 1.5}.items()
]


@pytest.mark.parametrize("everywhere", ["namespaces", *SLOWER], indirect=True)
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_on_every_backend(everywhere, attempt):
    async def scenario(backend):
        spoiled = await outlived(await backend.create(SPEC), attempt)
        assert spoiled is None or (attempt in SPOILING and backend.capabilities.name in ("docker", "qemu"))

    everywhere(scenario)


FILL = "for at in /workspace /tmp /home/agent /dev/shm /tests /logs; do cat /dev/zero > $at/fill; done"


def test_who_leaves_a_container_no_memory_has_spoiled_it(containers):
    async def filled(box):
        """The agent ends at the latest for the file, which it holds as a whole."""
        await box.exec(FILL, timeout_s=30)
        await box.exec("echo alive")
        await box.write_file("/workspace/x", bytes(60_000_000))

    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(memory_mb=64, disk_mb=128)))
        with pytest.raises(SandboxSpoiled, match="left no memory"):
            await filled(box)

    containers(scenario)


def test_commands_that_take_all_memory_are_killed_before_the_agent(containers):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(memory_mb=64, disk_mb=128)))
        for _ in range(3):
            assert (await box.exec('exec python3 -c "bytearray(1 << 30)"', timeout_s=30)).exit_code == 137
            assert (await box.exec("echo alive")).output == b"alive\n"

    containers(scenario)


SORTS = {"files of /proc": "file", "leases": "file", "every descriptor": "file", "logs": "file"}
SORTS |= dict.fromkeys(("signals", "whoever is new is stopped", "nobody may be stopped", "every process"), "signal")


def sort_of(attempt):
    """What is tried: the guest of the product's workspace is the one of the backends."""
    word = attempt.partition(" ")[0]
    return "limit" if word == "no" else "trace" if word.startswith("trac") else SORTS.get(attempt, "process")


@pytest.mark.parametrize("attempt", one_of_each(0.5, ATTEMPTS, sort_of))
def test_in_the_workspace_of_the_product(tmp_path, attempt):
    (tmp_path / "kept").write_bytes(b"k")

    async def scenario():
        box = await open_workspace(tmp_path)
        try:
            async with asyncio.timeout(200):
                assert await outlived(box, attempt, snapshots=False) is None or attempt in SPOILING
        finally:
            await box.destroy()

    asyncio.run(scenario())

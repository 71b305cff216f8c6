"""What is taken out of a sandbox is one moment's state, though its commands go on writing; on every backend."""

import asyncio
import io
import tarfile

import pytest
from proofs import often

from etude.environments.archive import take_out
from etude.environments.base import Resources, SandboxSpec
from etude.harness.session import SessionResult
from etude.records import Task, Verifier
from etude.rewards.sealed import run_to_seal

HOME = "/home/agent"
BALLAST = {f"m{number:02}": bytes(1 << 20) for number in range(24)}
"""What takes a while to read, between the first names and the last."""
GROWS = f"while :; do echo >> a; echo >> z; echo >> {HOME}/zz; done"
"""One byte each in turn, so that at any moment none is behind the one before it by more than one."""
MOVES = "while :; do mv a.moved z.moved; mv z.moved a.moved; done"
"""At any moment it has one of its names."""
SPEC = SandboxSpec(
    files={**BALLAST, "a": b"", "z": b"", "a.moved": b"1"}, resources=Resources(memory_mb=768, disk_mb=256)
)


async def write_for_ever(box) -> None:
    """What outlives the commands that started it, as a policy may; and a command in the background."""
    await box.exec(f": > {HOME}/zz; ({GROWS}) > /dev/null 2>&1 &")
    await box.start(MOVES)
    await further(box, 0)


async def further(box, than: int) -> None:
    """Returns when what grows is longer."""
    done = await box.exec(f"until [ $(wc -c < z) -gt {than} ]; do sleep 0.05; done", timeout_s=60)
    assert done.exit_code == 0, "those in the background write no more"


def sizes(archive) -> dict[str, int]:
    found = {}
    for place, tar in archive.parts:
        with tarfile.open(fileobj=io.BytesIO(tar)) as members:
            found |= {f"{place}/{each.name.removeprefix('./')}": each.size for each in members if each.isreg()}
    return found


def is_one_moment(archive) -> int:
    """And how far it is."""
    found = sizes(archive)
    a, z = found["/workspace/a"], found["/workspace/z"]
    assert z <= a <= z + 1
    assert len([name for name in found if name.endswith(".moved")]) == 1
    assert found.keys() > {f"/workspace/{name}" for name in BALLAST}
    if f"{HOME}/zz" in found:
        assert found[f"{HOME}/zz"] <= z <= found[f"{HOME}/zz"] + 1
    return z


@pytest.mark.timeout(400)
def test_what_is_taken_out_is_one_moments_and_the_writers_go_on(everywhere):
    async def scenario(backend):
        box = await backend.create(SPEC)
        await write_for_ever(box)
        for _ in range(often(1, 3)):
            await further(box, is_one_moment(await take_out(box, "/workspace", HOME)))

    everywhere(scenario, 300)


@pytest.mark.timeout(400)
def test_what_is_sealed_and_judged_is_one_moments(everywhere):
    async def play(box):
        await write_for_ever(box)
        return SessionResult("s", (), (), "finished", {})

    async def scenario(backend):
        task = Task("writes on", "", SPEC.files, Verifier({}))
        is_one_moment((await run_to_seal(task, backend, play)).final)

    everywhere(scenario, 300)


def test_in_parts_it_is_one_moment_too(namespaces):
    """Each further part is asked for by itself."""
    large = {f"m{number}": bytes(20 << 20) for number in range(4)}

    async def scenario(backend):
        resources = Resources(memory_mb=768, disk_mb=256)
        box = await backend.create(SandboxSpec(files={**SPEC.files, **large}, resources=resources))
        await write_for_ever(box)
        archive = await take_out(box)
        assert len(archive.parts) > 1
        is_one_moment(archive)

    namespaces(scenario)


def test_who_gives_up_taking_out_leaves_nobody_standing(namespaces):
    async def scenario(backend):
        box = await backend.create(SPEC)
        await write_for_ever(box)
        taking = asyncio.ensure_future(take_out(box))
        while not box._paused:
            await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait({taking})
        await further(box, len(await box.read_file("/workspace/z")))

    namespaces(scenario)

"""A command tries something against process 1 of its sandbox, which is then asked for everything a sandbox offers."""

import asyncio
from pathlib import Path

from on_process_one import ENDED

from etude.environments.base import Resources, SandboxSpec
from etude.errors import SandboxSpoiled

PROGRAM = Path(__file__).with_name("on_process_one.py")
SPEC = SandboxSpec(files={"kept": b"k"}, resources=Resources(pids=48))


async def outlived(box, attempt, snapshots=True):
    """Raises AssertionError where the sandbox lies, and any error but SandboxSpoiled where it fails."""
    await box.write_file("/tmp/on_process_one.py", PROGRAM.read_bytes())
    result = await box.exec(f"exec python3 /tmp/on_process_one.py '{attempt}'", timeout_s=150)
    assert result.exit_code == ENDED, result
    try:
        await ordinary(box)
        if attempt in ASKED:
            await ASKED[attempt](box)
        await box.pause()
        await box.resume()
        if snapshots:
            (fork,) = await box.fork(1)
            assert await fork.read_file("/workspace/kept") == b"k"
            await fork.destroy()
            assert (await box.metrics()).uptime_s > 0
        await ordinary(box)
    except SandboxSpoiled as error:
        return str(error)
    return None


async def long_output(box):
    """More than is handed back, so that process 1 writes it down where links of the command's may stand."""
    for _ in range(4):
        result = await box.exec("head -c 3000000 /dev/zero | tr '\\0' x", timeout_s=30, max_output_bytes=1000)
        assert result.exit_code == 0, result
    assert await box.read_file("/workspace/kept") == b"k"


async def leased_files(box):
    """Whoever opens one waits for its holder, or does without."""
    for number in range(3):
        assert await box.read_file(f"/workspace/leased-{number}") == b""
        await box.write_file(f"/workspace/leased-{number}", b"new")
        assert await box.read_file(f"/workspace/leased-{number}") == b"new"


ASKED = {"logs": long_output, "leases": leased_files}
"""What a row of the table has to do with beside the ordinary."""


async def ordinary(box):
    while (result := await box.exec("echo alive; exit 3", timeout_s=30)).exit_code != 3:
        assert result.exit_code == 126 and b"cannot start the command" in result.output, result  # no process is left
        await asyncio.sleep(0.1)
    assert result.output == b"alive\n"
    await box.write_file("/workspace/new", b"n" * 100_000)
    assert await box.read_file("/workspace/new") == b"n" * 100_000
    assert {"kept", "new"} <= {entry.name for entry in await box.list_dir("/workspace")}
    await box.remove("/workspace/new")
    assert (await box.exec("read -r line < kept; exit 5", timeout_s=30)).exit_code == 5

"""Commands in the background: output as it comes, ends, and clients that come and go."""

import asyncio
import gc

import pytest
from pace import timed_out
from proofs import one_of_each

from etude.environments.base import SandboxSpec
from etude.errors import DeadlineExceeded, SandboxError


async def all_of(process):
    return b"".join([piece async for piece in process.output()])


def test_output_comes_as_it_is_printed(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"sub/x": b""}))
        steps = "echo $A; pwd; until [ -e go ]; do sleep 0.01; done; echo end >&2; exit 3"
        process = await box.start(steps, cwd="/workspace/sub", env={"A": "b"})
        pieces = aiter(process.output())
        seen = b""
        while seen != b"b\n/workspace/sub\n":
            seen += await anext(pieces)
        with pytest.raises(DeadlineExceeded, match="to end"):
            await process.wait(0.05)
        assert [(info.id, info.running) for info in await box.processes()] == [(process.id, True)]
        await box.write_file("/workspace/sub/go", b"")
        assert [piece async for piece in pieces] == [b"end\n"]
        result = await process.wait(120)
        assert (result.exit_code, result.output) == (3, b"b\n/workspace/sub\nend\n")
        assert await process.wait(120) == result and await all_of(process) == result.output  # as often as one likes
        (info,) = await box.processes()
        assert (info.running, info.command) == (False, steps)
        await process.kill()

    run(scenario)


def test_it_outlives_the_call_and_ends_by_kill_with_its_session(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        process = await box.start("trap '' TERM; sleep 78.25 & sleep 78.25")
        while (await box.exec("pgrep -x -c sleep")).output != b"2\n":
            await asyncio.sleep(0.01)
        await process.kill()
        assert (await process.wait(120)).exit_code == 137
        while (await box.exec("pgrep -x sleep")).exit_code == 0:  # they die in the kernel's own time
            await asyncio.sleep(0.01)

    run(scenario)


def test_a_time_out_is_kept(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())

        async def begun(timeout_s):
            return await (await box.start("echo a; sleep 600", timeout_s=timeout_s)).wait(60)

        assert (await timed_out(begun)).output == b"a\n"

    run(scenario)


def test_a_lost_client_finds_its_process_again(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        number = (await box.start("echo first; until [ -e go ]; do sleep 0.01; done; echo last")).id
        gc.collect()  # nobody holds it now
        await asyncio.sleep(0.1)
        again = await box.connect(number)
        assert await box.connect(number) is again
        pieces = aiter(again.output())
        assert await anext(pieces) == b"first\n"
        await box.write_file("/workspace/go", b"")
        assert b"".join([piece async for piece in pieces]) == b"last\n"
        assert (await again.wait(120)).output == b"first\nlast\n"
        del again, pieces
        gc.collect()
        ended = await box.connect(number)
        assert await all_of(ended) == b"first\nlast\n" and (await ended.wait(120)).exit_code == 0
        with pytest.raises(ProcessLookupError, match="999"):
            await box.connect(999)

    run(scenario)


@pytest.mark.parametrize("size", one_of_each(0.9, [900, 901, 0, 1, 70_000], lambda size: size > 900))
def test_output_is_bounded_and_the_log_has_the_rest(run, size):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        whole = b"".join(b"%07d\n" % i for i in range(size // 8 + 1))[:size]
        await box.write_file("/tmp/whole", whole)
        process = await box.start("cat /tmp/whole", max_output_bytes=1000)
        streamed, result = await all_of(process), await process.wait(120)
        assert streamed == whole[:900]
        assert len(result.output) <= 1000 and (result.output == whole) == (size <= 900)
        if size > 900:
            assert await box.read_file(result.log_path) == whole
        number = process.id
        del process
        gc.collect()
        late = await box.connect(number)
        again = await all_of(late)  # past the cap at least its first half, and all where somebody held on to it
        assert again == whole[:900] or (size > 900 and again == whole[:450])
        assert await late.wait(120) == result

    run(scenario)


def test_endless_output_neither_grows_nor_blocks(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        processes = [await box.start("yes", max_output_bytes=5000) for _ in range(3)]
        for process in processes:
            assert (await anext(aiter(process.output()))).startswith(b"y\ny\n")
        for _ in range(50):
            assert (await box.exec("echo alive")).output == b"alive\n"
        for process in processes:
            await process.kill()
            assert (await process.wait(120)).exit_code == 137
            assert len(await all_of(process)) == 4900

    run(scenario)


def test_only_the_last_that_ended_are_remembered(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        kept = await box.start("sleep 600")
        for number in range(20):
            assert (await (await box.start(f"echo {number}")).wait(120)).output == b"%d\n" % number
        infos = await box.processes()
        assert [info.id for info in infos if info.running] == [kept.id]
        assert [info.command for info in infos if not info.running] == [f"echo {number}" for number in range(4, 20)]

    run(scenario)


def test_what_no_shell_can_be_given_is_refused_and_a_missing_directory_is_said(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        with pytest.raises(OSError, match="NUL"):
            await box.start("echo \0")
        lost = await box.start("true", cwd="/none")
        assert (await lost.wait(120)).exit_code == 126 and b"cannot enter" in await all_of(lost)

    run(scenario)


def test_the_end_of_the_sandbox_ends_every_wait(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        process = await box.start("echo a; sleep 600")
        reading, waiting = asyncio.ensure_future(all_of(process)), asyncio.ensure_future(process.wait(60))
        await asyncio.sleep(0.1)
        await box.destroy()
        for task in (reading, waiting):
            with pytest.raises(SandboxError, match="destroyed"):
                await task
        with pytest.raises(SandboxError, match="destroyed"):
            await box.start("true")

    run(scenario)

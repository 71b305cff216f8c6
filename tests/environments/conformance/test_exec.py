"""How commands run and end."""

import asyncio

import pytest
from pace import slowness, timed_out

from etude.environments.base import SandboxSpec


def test_exit_codes_output_order_and_environment(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"sub/x": b""}))
        assert (await box.exec("exit 7")).exit_code == 7
        assert (await box.exec("kill -9 $$")).exit_code == 137
        result = await box.exec("echo 1; echo 2 >&2; echo 3; cat; pwd; echo $A", cwd="/workspace/sub", env={"A": "b=c"})
        assert (result.exit_code, result.output) == (0, b"1\n2\n3\n/workspace/sub\nb=c\n")
        assert (await box.exec("true", cwd="/none")).exit_code == 126
        assert (await box.exec("echo a\0b")).exit_code == 126
        assert (await box.exec("echo \ud800")).exit_code == 126
        assert (await box.exec("printf '\\000\\377'")).output == b"\0\xff"
        latin = await box.exec("printf '\udce9'; printenv A", env={"A": "\udcff"})  # neither is UTF-8
        assert latin.output == b"\xe9\xff\n"

    run(scenario)


def test_ends_with_the_process_not_with_its_pipes(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec("(sleep 600; echo late) & echo early", timeout_s=40)
        assert result.output == b"early\n" and not result.timed_out
        server = "(while true; do echo chatter; sleep 0.001; done) &"  # must survive though nobody reads it
        assert (await box.exec(server)).exit_code == 0
        await asyncio.sleep(0.1)
        assert int((await box.exec("pgrep -f -c 'while tru[e]'")).output) >= 1

    run(scenario)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 77.125",
        "trap '' TERM INT HUP; sleep 77.125; sleep 77.125",
        "timeout 100 sleep 77.125",  # makes a group of its own
        "set -m 2>/dev/null; sleep 77.125 & sleep 77.125 & wait",
        "python3 -c 'import os, time; os.fork(); time.sleep(77.125)'",
    ],
)
def test_timeout_kills_the_whole_session(run, command):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await timed_out(lambda timeout_s: box.exec(f"echo start; {command}", timeout_s=timeout_s))
        assert result.output == b"start\n"
        while (await box.exec("pgrep -f '[7]7.125'")).exit_code == 0:  # they die in the kernel's own time
            await asyncio.sleep(0.01)

    run(scenario)


def test_cancelling_the_caller_kills_the_command(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        for _ in range(10):  # its children die a moment after it
            task = asyncio.ensure_future(box.exec("sleep 77 & sleep 77"))
            while (await box.exec("pgrep -f 'sleep [7]7'")).exit_code != 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.exec("pgrep -f 'sleep [7]7'")).exit_code == 1  # gone before the caller went on

    run(scenario)


@pytest.mark.parametrize("size", [0, 1, 899, 900, 901, 1000, 1001, 150_000])
def test_output_is_whole_up_to_the_cap_then_cut_in_the_middle(run, size):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        whole = b"".join(b"%07d\n" % i for i in range(size // 8 + 1))[:size]
        await box.write_file("/tmp/whole", whole)
        result = await box.exec("cat /tmp/whole", max_output_bytes=1000)
        assert len(result.output) <= 1000
        if size <= 900:
            assert (result.output, result.log_path) == (whole, None)
            return
        head, _, tail = result.output.partition(b"\n[... ")
        cut, _, tail = tail.partition(b" ...]\n")
        assert whole.startswith(head) and whole.endswith(tail) and len(head) == len(tail) == 450
        assert cut == b"%d bytes cut, whole output in %s" % (size - 900, result.log_path.encode())
        assert await box.read_file(result.log_path) == whole

    run(scenario)


def test_endless_output_is_bounded_and_the_sandbox_goes_on(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        enough = (16 << 20) // slowness(backend) ** 2
        for timeout_s in (1.0, 4.0, 20.0):  # until it has said enough, however slow the machine
            result = await box.exec("yes", timeout_s=timeout_s, max_output_bytes=2000)
            assert result.timed_out and len(result.output) <= 2000
            if (size := int((await box.exec(f"stat -c %s {result.log_path}")).output)) >= enough:
                break
            await box.exec(f"rm {result.log_path}")
        assert enough <= size <= 17 << 20
        for _ in range(6):  # /tmp fills with logs; commands still run, and say that their log is not there
            result = await box.exec("head -c 20000000 /dev/zero", max_output_bytes=2000)
        assert result.exit_code == 0 and result.log_path is None and b"/tmp is full" in result.output

    run(scenario)


def test_closed_stdout_and_orphans(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec("exec >&- 2>&-; sleep 0.05; exit 3")).exit_code == 3
        await box.exec("for i in $(seq 20); do (sleep 0.01 &) ; done; sleep 0.1")
        while b"Z" in (await box.exec("ps -eo stat=")).output:  # process 1 reaps every orphan
            await asyncio.sleep(0.01)

    run(scenario)


def test_many_commands_at_once_in_one_sandbox(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        count = 40 if slowness(backend) == 1 else 12
        names = " ".join(f"s-{i}" for i in range(count))
        together = f"for name in {names}; do until test -e $name; do sleep 0.2; done; done"  # ends when all have begun
        commands = (box.exec(f"touch s-{i}; {together}; echo {i}", timeout_s=200) for i in range(count))
        results = await asyncio.gather(*commands)
        assert [result.output for result in results] == [b"%d\n" % i for i in range(count)]

    run(scenario)

"""A sandbox stopped, copied and counted: pause and resume, fork, metrics."""

import asyncio
import time

import pytest

from etude.environments.base import Resources, SandboxSpec
from etude.errors import ConfigError, SandboxError


def test_a_paused_sandbox_stands_still_and_so_do_time_outs(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        counting = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo >> n; sleep 0.02; done; echo done"
        command = asyncio.ensure_future(box.exec(counting, timeout_s=4.0))
        await box.exec("until [ -s n ]; do sleep 0.01; done")
        await box.pause()
        await box.pause()
        frozen = await box.snapshot()  # may be asked for while it stands still, and does not wake it
        for refused in (box.exec("true"), box.read_file("/workspace/n"), box.metrics(), box.upload(b"", "/workspace")):
            with pytest.raises(SandboxError, match=r"paused: resume\(\) it"):
                await refused
        await asyncio.sleep(4.5)
        await box.resume()
        await box.resume()
        result = await command
        assert (result.output, result.timed_out) == (b"done\n", False)
        then = await backend.create(SandboxSpec(base=frozen))
        assert len(await then.read_file("/workspace/n")) < 40 == len(await box.read_file("/workspace/n"))

    run(scenario)


def test_a_paused_sandbox_can_be_destroyed(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        command = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await box.pause()
        began = time.monotonic()
        await box.destroy()
        assert time.monotonic() - began < 4
        with pytest.raises(SandboxError, match="destroyed"):
            await command

    run(scenario)


def test_a_time_out_still_comes_after_a_pause(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        command = asyncio.ensure_future(box.exec("sleep 60", timeout_s=1.0))
        await asyncio.sleep(0.2)
        await box.pause()
        await asyncio.sleep(0.2)
        await box.resume()
        began = time.monotonic()
        assert (await command).timed_out
        assert 0.4 < time.monotonic() - began < 8

    run(scenario)


def test_forks_start_from_one_moment_and_are_independent(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"1", "gone": b"x"}, resources=Resources(pids=77)))
        await box.exec("echo 2 > a; rm gone; (while true; do echo x >> w; echo x >> v; sleep 0.001; done) &")
        forks = await box.fork(4)
        assert len({fork.id for fork in (box, *forks)}) == 5
        ends = await asyncio.gather(*(fork.exec(f"cat a; ls; echo {i} > a; cat a") for i, fork in enumerate(forks)))
        for number, end in enumerate(ends):
            assert (
                end.output.startswith(b"2\na\n")
                and end.output.endswith(b"\n%d\n" % number)
                and b"gone" not in end.output
            )
        assert await box.read_file("/workspace/a") == b"2\n"
        (grandchild,) = await forks[0].fork(1)
        assert await grandchild.read_file("/workspace/a") == b"0\n"
        await box.destroy()
        assert await forks[1].read_file("/workspace/a") == b"1\n"
        with pytest.raises(ConfigError, match="fork"):
            await box.fork(0)

    run(scenario)


def test_a_fork_is_all_or_none(run, monkeypatch):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"1"}))
        create, made = backend.create, []

        async def third_fails(spec):
            if len(made) == 2:
                raise SandboxError("no room")
            made.append(None)
            made[-1] = await create(spec)
            return made[-1]

        monkeypatch.setattr(backend, "create", third_fails)
        with pytest.raises(SandboxError, match="no room"):
            await box.fork(3)
        for fork in (fork for fork in made if fork is not None):
            with pytest.raises(SandboxError, match="destroyed"):
                await fork.exec("true")
        assert (await box.exec("cat a")).output == b"1"

    run(scenario)


def test_metrics_follow_what_is_used(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        idle = await box.metrics()
        assert idle.pids == 0 and idle.cpu_s < 1
        await box.write_file(
            "/tmp/hold.py",
            b"import time\nkept = b'x' * (60 << 20)\nopen('big', 'wb').write(kept[: 20 << 20])\ntime.sleep(600)\n",
        )
        await box.exec("python3 /tmp/hold.py & until [ $(stat -c %s big || echo 0) = 20971520 ]; do sleep 0.01; done")
        await box.exec("python3 -c 'import time\nwhile time.process_time() < 0.5: pass'", timeout_s=30)
        busy = await box.metrics()
        assert busy.pids == 1
        assert 0.45 < busy.cpu_s - idle.cpu_s < 30
        assert 50 << 20 < busy.memory_bytes - idle.memory_bytes < 120 << 20
        assert 20 << 20 <= busy.disk_bytes - idle.disk_bytes < 22 << 20
        assert busy.uptime_s > idle.uptime_s + 0.5

    run(scenario)

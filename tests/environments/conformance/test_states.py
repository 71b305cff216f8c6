"""A sandbox stopped, copied, counted and ended: snapshot, fork, pause and resume, metrics, destroy."""

import asyncio
import time

import pytest

from etude.environments.base import Resources, SandboxSpec, Snapshot
from etude.environments.client import RemoteBackend
from etude.errors import ConfigError, SandboxError

DEEP = ("namespace", "qemu")
"""Whose snapshots are no archives, in which members have names: they hold a tree of any depth."""


def test_snapshot_carries_the_workspace_and_forks_are_independent(run):
    async def scenario(backend):
        parent = await backend.create(SandboxSpec(files={"keep": b"k", "gone": b"g", "dir/old": b"o"}))
        await parent.exec("rm gone; rm -r dir; mkdir dir; echo v1 > dir/new; ln -s keep link; echo x > /tests/planted")
        snapshot = await parent.snapshot()
        await parent.exec("echo v2 > dir/new")
        one, two = await asyncio.gather(*(backend.create(SandboxSpec(base=snapshot)) for _ in range(2)))
        await one.exec("echo one > dir/new; rm keep")
        listing = (await two.exec("ls -R; cat dir/new link; ls /tests")).output
        planted = b"planted\n" if backend.capabilities.snapshot == "full" else b""  # no verifier may meet it
        assert listing == b".:\ndir\nkeep\nlink\n\n./dir:\nnew\nv1\nk" + planted
        assert await parent.read_file("/workspace/dir/new") == b"v2\n"
        second = await one.snapshot()
        await backend.release(snapshot)
        await backend.release(snapshot)
        grandchild = await backend.create(SandboxSpec(base=second, files={"keep": b"laid over"}))
        assert (await grandchild.exec("cat dir/new keep")).output == b"one\nlaid over"
        with pytest.raises(SandboxError, match="released"):
            await backend.create(SandboxSpec(base=snapshot))
        with pytest.raises(SandboxError, match="another backend"):
            await backend.create(SandboxSpec(base=Snapshot("elsewhere/1")))

    run(scenario)


def test_snapshot_stops_writers_and_lets_them_go_on(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec(
            "(while true; do echo x >> a; echo x >> b; sleep 0.001; done) & until [ -s b ]; do sleep 0.01; done"
        )
        snapshot = await box.snapshot()
        fork = await backend.create(SandboxSpec(base=snapshot))
        second, first = [len(await fork.read_file(f"/workspace/{name}")) for name in "ba"]
        if backend.capabilities.snapshot == "disk":
            assert 0 <= first - second <= 2  # the copy is of one moment
        before = len(await box.read_file("/workspace/a"))
        while len(await box.read_file("/workspace/a")) <= before:  # the scenario's deadline bounds this
            await asyncio.sleep(0.01)
        if backend.capabilities.snapshot == "full":  # the writer came along, and writes on
            while len(await fork.read_file("/workspace/a")) <= first:
                await asyncio.sleep(0.01)
        else:
            await asyncio.sleep(0.05)
            assert len(await fork.read_file("/workspace/a")) == first

    run(scenario)


def test_no_tree_is_too_deep_for_a_snapshot(run):
    dig = 'python3 -c \'import os\nfor _ in range(6000): os.mkdir("d"); os.chdir("d")\nopen("end", "w")\''
    depth = (
        'python3 -c \'import os\nfor n in range(9999):\n if os.listdir() == ["end"]: print(n); break\n os.chdir("d")\''
    )

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        assert (await box.exec(dig)).exit_code == 0
        if backend.capabilities.name not in DEEP:
            with pytest.raises(SandboxError, match=r"cannot pack its files: .*File name too long"):
                await box.fork(1)
            assert (await box.exec("rm -r d; ls")).output == b""
            return
        (fork,) = await box.fork(1)
        assert (await fork.exec(depth)).output == b"6000\n"
        for refused in (box.download("/workspace"), box.remove("/workspace/d", recursive=True)):
            with pytest.raises(OSError):  # and not the end of the agent
                await refused
        assert (await box.exec(f"{depth}; rm -r d; ls")).output == b"6000\n"

    run(scenario)


def test_destroy_twice_and_use_after(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.05)
        await asyncio.gather(box.destroy(), box.destroy())
        await box.destroy()
        with pytest.raises(SandboxError, match="destroyed"):
            await running
        with pytest.raises(SandboxError, match="destroyed"):
            await box.exec("true")
        await backend.close()
        with pytest.raises(SandboxError, match="closed"):
            await backend.create(SandboxSpec())

    run(scenario)


def test_a_paused_sandbox_stands_still_and_so_do_time_outs(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        counting = "until [ -e go ]; do echo >> n; sleep 0.02; done; echo done"
        began = time.monotonic()
        await box.exec("true")
        limit_s = 2.0 + 40 * (time.monotonic() - began)  # the calls below must fit into it, on a slow machine too
        command = asyncio.ensure_future(box.exec(counting, timeout_s=limit_s))
        await box.exec("until [ -s n ]; do sleep 0.01; done")
        await box.pause()
        await box.pause()
        frozen = await box.snapshot()  # may be asked for while it stands still, and does not wake it
        for refused in (box.exec("true"), box.read_file("/workspace/n"), box.metrics(), box.upload(b"", "/workspace")):
            with pytest.raises(SandboxError, match=r"paused: resume\(\) it"):
                await refused
        await asyncio.sleep(limit_s + 0.5)  # its whole time, were it counted
        await box.resume()
        await box.resume()
        await box.exec("k=$(wc -c < n); until [ $(wc -c < n) -gt $k ]; do sleep 0.01; done; touch go")  # it goes on
        result = await command
        assert (result.output, result.timed_out) == (b"done\n", False)
        then = await backend.create(SandboxSpec(base=frozen))
        if backend.capabilities.snapshot == "disk":  # else it counts on
            assert 1 <= len(await then.read_file("/workspace/n")) < len(await box.read_file("/workspace/n"))

    run(scenario)


STOPPED = """
sh -c 'kill -STOP $$; echo woken > woken; sleep 600' & echo $! > pid
until grep -q '^State:.T' /proc/$(cat pid)/status; do sleep 0.01; done
"""


def test_what_the_task_has_stopped_stays_stopped(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec(f"{STOPPED} (while true; do echo >> ticks; sleep 0.01; done) &")
        await box.snapshot()
        await box.pause()
        before = await box.snapshot()
        await box.resume()
        await box.exec("n=$(wc -c < ticks); until [ $(wc -c < ticks) -gt $((n + 5)) ]; do sleep 0.01; done")
        assert (await box.exec("cat woken; grep State: /proc/$(cat pid)/status")).output.endswith(b"T (stopped)\n")
        await box.exec("kill -CONT $(cat pid)")
        assert (await box.exec("until [ -s woken ]; do sleep 0.01; done; cat woken")).output == b"woken\n"
        await backend.release(before)

    run(scenario)


def test_a_paused_sandbox_can_be_destroyed(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        command = asyncio.ensure_future(box.exec("sleep 600"))  # longer than the scenario may take
        await asyncio.sleep(0.1)
        await box.pause()
        await box.destroy()
        with pytest.raises(SandboxError, match="destroyed"):
            await command

    run(scenario)


def test_a_time_out_still_comes_after_a_pause(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        command = asyncio.ensure_future(box.exec("echo > begun; sleep 600", timeout_s=2.5))
        await box.exec("until [ -e begun ]; do sleep 0.01; done")
        await box.pause()
        await asyncio.sleep(0.2)
        assert not command.done()
        await box.resume()
        assert (await command).timed_out

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
        if isinstance(backend, RemoteBackend):
            pytest.skip("its server makes the forks, and must fail at it there: see server/test_kills.py")
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

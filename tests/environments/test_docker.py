"""The docker backend against the engine's published API, and its sandboxes on an agent that really runs.

What every backend must do alike runs on a real engine where one answers: see conformance/conftest.py.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from engine_stand_in import Container, StandIn, complaints
from scenarios import within

from etude.environments import store
from etude.environments.backends import open_backend
from etude.environments.base import ARCHIVE_MAX, Resources, SandboxSpec
from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.probe import probe
from etude.errors import ConfigError, MissingDependency, SandboxError


@pytest.fixture
def engine(tmp_path):
    with StandIn(tmp_path / "engine.sock") as engine:
        yield engine
    assert engine.wrong == []


def run(engine, scenario, deadline_s=60.0, **settings):
    def make():
        backend = open_backend(DockerConfig(socket=engine.server_address, image="machine", **settings))
        assert isinstance(backend, DockerBackend)
        return backend

    return within(deadline_s, make, scenario)


def until(true, deadline_s=10.0):
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def test_commands_files_and_processes(engine):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a/b": b"1", "c": bytes(range(256)) * 9000}))
        assert (await box.exec("id -u; cat a/b; echo oops >&2; exit 3")).output == b"1000\n1oops\n"
        assert await box.read_file("/workspace/c") == bytes(range(256)) * 9000
        with pytest.raises(OSError, match="Read-only"):
            await box.write_file("/usr/x", b"")
        process = await box.start("for i in 1 2 3; do echo $i; sleep 0.05; done")
        assert b"".join([piece async for piece in process.output()]) == b"1\n2\n3\n"
        assert (await box.exec("sleep 60", timeout_s=0.3)).timed_out
        status = (await box.exec("cat /proc/self/status; ls /sys/class/net 2>/dev/null")).output
        assert b"Seccomp:\t2" in status and b"NoNewPrivs:\t1" in status
        capabilities = backend.capabilities
        assert (capabilities.isolation, capabilities.snapshot, capabilities.network) == ("container", "disk", False)

    run(engine, scenario)
    assert engine.containers == {}


def test_nothing_is_left_to_the_engines_defaults(engine):
    async def scenario(backend):
        await backend.create(SandboxSpec(resources=Resources(memory_mb=100, pids=7, cpus=0.5, disk_mb=16)))

    run(engine, scenario, env={"EXTRA": "x"}, runtime="runsc")
    (body,) = [body for method, path, body in engine.log if path.endswith("/create") and "Entrypoint" in body]
    host = body["HostConfig"]
    assert host["NetworkMode"] == "none" and host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"]
    assert host["SecurityOpt"] == ["no-new-privileges"] and not host["Privileged"] and host["Runtime"] == "runsc"
    assert host["Memory"] == host["MemorySwap"] == 196 << 20 and host["PidsLimit"] == 8
    assert host["NanoCpus"] == 500_000_000 and host["LogConfig"] == {"Type": "none"} and host["AutoRemove"]
    assert f"size={16 << 20},nr_inodes=4096" in host["Tmpfs"]["/workspace"]
    assert body["User"] == "1000:1000" and {"EXTRA=x", "PATH=/usr/bin", "HOME=/home/agent"} <= set(body["Env"])
    assert body["StdinOnce"] and body["OpenStdin"] and not body["Tty"]


def test_the_contract_knows_what_is_wrong():
    route = "POST /containers/create"
    assert complaints(route, {"nam": ["x"]}, b'{"Image": "a"}') == [f"{route} has no query 'nam'"]
    assert len(complaints(route, {}, b'{"Image": 1, "HostConfig": {"PidLimit": 1}}')) == 2


def test_a_snapshot_is_the_workspace_and_a_fork_starts_from_it(engine):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"keep": b"k", "gone": b"g", "dir/old": b"o"}))
        await box.exec("rm gone; echo new > dir/new; ln -s keep link; chmod 750 dir; echo x > /tests/planted")
        one, two = await box.fork(2)
        await one.write_file("/workspace/keep", b"one")
        seen = (await two.exec("ls -R . /tests; cat link; stat -c %a dir")).output
        assert seen == b".:\ndir\nkeep\nlink\n\n./dir:\nnew\nold\n\n/tests:\nk750\n"
        snapshot = await two.snapshot()
        await backend.release(snapshot)
        with pytest.raises(SandboxError, match="released"):
            await backend.create(SandboxSpec(base=snapshot))

    run(engine, scenario)


def test_a_workspace_larger_than_an_archive_is_forked_too(engine):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(disk_mb=128)))
        each = ARCHIVE_MAX * 6 // 10
        await box.exec(
            f"mkdir -p d/e; head -c {each} /dev/urandom > d/a; head -c {each} /dev/urandom > d/e/b; echo c > c"
        )
        (fork,) = await box.fork(1)
        sums = "sha256sum d/a d/e/b c"
        assert (await fork.exec(sums, timeout_s=60)).output == (await box.exec(sums, timeout_s=60)).output

    run(engine, scenario, deadline_s=120.0)


def test_pause_and_destroy(engine):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        counting = asyncio.ensure_future(box.exec("for i in 1 2 3 4 5; do echo >> n; sleep 0.1; done", timeout_s=1.5))
        await box.exec("until [ -s n ]; do sleep 0.01; done")
        await box.pause()
        await asyncio.sleep(1.6)
        await box.resume()
        assert not (await counting).timed_out
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await asyncio.sleep(0.1)
        await asyncio.gather(box.destroy(), box.destroy())
        with pytest.raises(SandboxError, match="destroyed"):
            await running

    run(engine, scenario)


def test_a_workspace_begins_with_the_images_own_files(engine):
    engine.workspaces["sha256:" + "0" * 64] = {"src/app.py": b"print(1)\n", "README": b"image's"}

    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"README": b"task's"}))
        assert (await box.exec("python3 src/app.py; cat README; stat -c %u README")).output == b"1\ntask's1000\n"

    run(engine, scenario)


def test_images_that_cannot_be_used_are_refused(engine):
    engine.images["elsewhere"] = {"Id": "sha256:1", "Config": {"WorkingDir": "/app"}}

    async def scenario(backend):
        with pytest.raises(ConfigError, match="docker pull nothere"):
            await backend.create(SandboxSpec(image="nothere"))
        with pytest.raises(ConfigError, match="WORKDIR /workspace"):
            await backend.create(SandboxSpec(image="elsewhere"))

    run(engine, scenario)


def test_what_the_engine_refuses_is_quoted_and_nothing_stays(engine):
    engine.refuse_start = 'unknown or invalid runtime name: "runsc"'

    async def scenario(backend):
        with pytest.raises(SandboxError, match="start a container: unknown or invalid runtime"):
            await backend.create(SandboxSpec())
        assert engine.containers == {} and backend.live == {}

    run(engine, scenario)


def test_a_cancelled_start_leaves_no_container(engine):
    async def scenario(backend):
        await (await backend.create(SandboxSpec())).destroy()
        asked = len(engine.log)
        start = asyncio.ensure_future(backend.create(SandboxSpec()))
        while len(engine.log) == asked:  # the scenario's deadline bounds this
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert engine.containers == {} and backend.live == {}

    run(engine, scenario)


def test_no_engine_is_said_with_what_to_do(tmp_path):
    with pytest.raises(MissingDependency, match=r"no container engine at .*systemctl start docker"):
        open_backend(DockerConfig(socket=tmp_path / "none.sock"))
    (finding,) = probe(DockerConfig(socket=tmp_path / "none.sock"))
    assert not finding.ok and "podman system service" in finding.remedy
    with StandIn(tmp_path / "old.sock", version="1.39") as old, pytest.raises(MissingDependency, match=r"1\.39"):
        open_backend(DockerConfig(socket=old.server_address))


def test_the_doctor_looks_from_inside(engine):
    asked, real = probe(DockerConfig(socket=engine.server_address, image="machine"))
    assert asked.ok and "1.44" in asked.said
    assert "started in" in real.said or "looks wrong" in real.said  # the stand-in has no /sys


CONTROLLER = """
import asyncio, sys
from etude.environments.base import SandboxSpec
from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig

async def main():
    box = await DockerBackend(DockerConfig(socket=sys.argv[1], image="machine")).create(SandboxSpec())
    await box.start("sleep 600")
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_killed_controller_leaves_no_container(engine):
    child = subprocess.Popen([sys.executable, "-c", CONTROLLER, engine.server_address], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        assert len(engine.containers) == 1
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    until(lambda: engine.containers == {})


def test_what_a_killed_controller_never_started_is_removed_by_the_next(engine):
    dead, living = "1-1-00000000-1-0", store.new_instance()
    for name, instance in (("dead", dead), ("mine", living), ("other", "not ours")):
        engine.containers[name] = Container({"Labels": {"etude.instance": instance}})

    async def scenario(backend):
        await backend.create(SandboxSpec())
        assert {"mine", "other"} <= engine.containers.keys() and "dead" not in engine.containers

    run(engine, scenario)


def test_hosts_to_reach_are_refused_not_forgotten(engine):
    async def scenario(backend):
        assert not backend.capabilities.network
        with pytest.raises(ConfigError, match="egress: the docker backend"):
            await backend.create(SandboxSpec(egress=("mirror.example.com",)))
        assert not backend.live
        assert (await (await backend.create(SandboxSpec(egress=()))).exec("echo up")).output == b"up\n"

    run(engine, scenario)

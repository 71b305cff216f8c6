"""The docker backend against the engine's published API, and its sandboxes on an agent that really runs.

What every backend must do alike runs on a real engine where one answers: see conformance/conftest.py.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from container_scenarios import SHARED, a_workspace_begins_with_the_images_own_files
from engine_stand_in import Container, StandIn, complaints
from scenarios import within

from etude.environments import store
from etude.environments.backends import open_backend
from etude.environments.base import Resources, SandboxSpec
from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.probe import probe
from etude.errors import ConfigError, MissingDependency, SandboxError, SandboxSpoiled


@pytest.fixture
def engine(tmp_path):
    with StandIn(tmp_path / "engine.sock") as engine:
        yield engine
    assert engine.wrong == []


def run(engine, scenario, deadline_s=200.0, **settings):
    def make():
        backend = open_backend(DockerConfig(socket=engine.server_address, image="machine", **settings))
        assert isinstance(backend, DockerBackend)
        return backend

    return within(deadline_s, make, scenario)


def until(true, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


@pytest.mark.parametrize("scenario", SHARED, ids=lambda scenario: scenario.__name__)
def test_what_all_containers_do(engine, scenario):
    run(engine, scenario, deadline_s=120.0)
    assert engine.containers == {}


def test_what_it_says_of_itself(engine):
    async def scenario(backend):
        capabilities = backend.capabilities
        assert (capabilities.isolation, capabilities.snapshot, capabilities.network) == ("container", "disk", False)

    run(engine, scenario)


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


def test_a_workspace_begins_with_the_images_own_files(engine):
    engine.workspaces["sha256:" + "0" * 64] = {"src/app.py": b"print(1)\n", "README": b"image's"}
    run(engine, a_workspace_begins_with_the_images_own_files)


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
    assert asked.ok and "1.44" in asked.detail
    assert "started in" in real.detail or "looks wrong" in real.detail  # the stand-in has no /sys


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


@pytest.mark.parametrize(("events", "kind"), [(["oom", "die"], SandboxSpoiled), (["die"], SandboxError)])
def test_an_agent_for_which_commands_left_no_memory_ended_by_them(engine, events, kind):
    engine.events = events

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("sleep 60"))
        await box.exec("echo up")
        bwrap = next(iter(engine.containers.values())).process.pid
        os.kill(int(Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text()), signal.SIGKILL)
        with pytest.raises(SandboxError) as raised:
            await running
        assert type(raised.value) is kind
        with pytest.raises(SandboxError) as raised:
            await box.read_file("/workspace/a")
        assert type(raised.value) is kind

    run(engine, scenario)


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

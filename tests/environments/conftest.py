"""A backend of the test's own, or a real server for whoever restarts none, with nothing left of either afterwards."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import machine_image
import pytest
from debian_packages import program
from real_engine import docker_engine
from rootless import server_without_root
from scenarios import within

from etude.environments.docker.backend import DockerBackend
from etude.environments.docker.config import DockerConfig
from etude.environments.images.store import Described, ImageStore
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.qemu.backend import QemuBackend
from etude.environments.qemu.config import QemuConfig
from etude.environments.roots import ImagesConfig


@pytest.fixture
def run(tmp_path):
    """Run `scenario(backend)` on a fresh event loop and backend, within a deadline."""

    def runner(scenario, config=None, deadline_s=200.0, **given):
        return within(deadline_s, lambda: NamespaceBackend(config or NamespaceConfig(), **given), scenario)

    return runner


@pytest.fixture
def public():
    """A directory that other users may pass. Pytest's own are for their user alone, which each of its runs sees to."""
    path = Path(tempfile.mkdtemp(prefix="etude-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A real environment server in a process of its own, with the namespace backend behind it."""
    from env_serving import Served

    server = Served(tmp_path_factory.mktemp("served")).start()
    try:
        yield server
        server.stop()
        assert server.left() == []
    finally:
        server.end()


@pytest.fixture
def from_afar(served):
    """Run `scenario(backend)` on a fresh event loop and client of the real server, which is alive afterwards."""

    def runner(scenario, deadline_s=200.0):
        within(deadline_s, served.client, scenario)
        assert served.process.exitcode is None

    return runner


@pytest.fixture(scope="session")
def container_config(tmp_path_factory):
    """A config for containers of a real engine: one of our own, or the one that ETUDE_TEST_ENGINE names, which has the
    image ETUDE_TEST_ENGINE_IMAGE with a shell, the usual small programs and python3."""
    if named := os.environ.get("ETUDE_TEST_ENGINE"):
        yield DockerConfig(socket=Path(named), image=os.environ.get("ETUDE_TEST_ENGINE_IMAGE", "machine"))
        return
    with docker_engine(tmp_path_factory.mktemp("engine")) as socket:
        yield DockerConfig(socket=socket, image="machine")


@pytest.fixture
def containers(container_config):
    """Run `scenario(backend)` on a fresh backend of a real engine."""
    return lambda scenario, deadline_s=200.0: within(deadline_s, lambda: DockerBackend(container_config), scenario)


@pytest.fixture(scope="session")
def machine_images(tmp_path_factory):
    """An image for virtual machines, named `machine`, and what else all kinds of machines need."""
    program("lz4", "lz4")
    program("mkfs.erofs", "erofs-utils")
    root = tmp_path_factory.mktemp("machine-root")
    root.chmod(0o755)
    machine_image.build(root)
    images = ImagesConfig(dir=tmp_path_factory.mktemp("machine-images"))
    ImageStore(images).add_directory(root, Described(user="agent"), name="machine")
    shutil.rmtree(root)
    return images


@pytest.fixture(scope="session")
def machine_config(machine_images):
    """A config for virtual machines that run here, emulated."""
    program("qemu-system-x86_64", "qemu-system-x86")
    return QemuConfig(accel="tcg", image="machine", images=machine_images)


@pytest.fixture(scope="module")
def machines(machine_config):
    """Run `scenario(backend)` on virtual machines, a module's on one backend: it boots each kind of machine once."""
    kept = []
    with asyncio.Runner() as runner:

        async def whole(scenario, deadline_s):
            if not kept or kept[0].closed:
                kept[:] = [QemuBackend(machine_config)]
            try:
                async with asyncio.timeout(deadline_s):
                    return await scenario(kept[0])
            finally:
                await asyncio.gather(*(box.destroy() for box in list(kept[0].live.values())))

        yield lambda scenario, deadline_s=280.0: runner.run(whole(scenario, deadline_s))
        if kept:
            runner.run(kept[0].close())


@pytest.fixture(scope="session")
def server_of_nobody():
    """Makes clients of a server whose sandboxes are made without root."""
    if os.geteuid() != 0:
        pytest.skip("the whole suite already runs without root")
    with server_without_root() as client:
        yield client


@pytest.fixture
def without_root(server_of_nobody):
    """Run `scenario(backend)` on a fresh client of that server."""
    return lambda scenario, deadline_s=60.0: within(deadline_s, server_of_nobody, scenario)


@pytest.fixture
def namespaces(run):
    """Run `scenario(backend)` on a fresh backend of namespaces."""
    return lambda scenario, deadline_s=60.0: run(scenario, deadline_s=deadline_s)


@pytest.fixture(
    params=["namespaces", "without_root", "containers", pytest.param("machines", marks=pytest.mark.proof(4))]
)
def everywhere(request):
    """Run `scenario(backend)` on every kind of sandbox that runs here; a kind that does not is skipped, saying why.
    Emulated machines on a busy one need minutes."""
    kind = request.getfixturevalue(request.param)
    return lambda scenario, deadline_s=280.0: kind(scenario, deadline_s=deadline_s)

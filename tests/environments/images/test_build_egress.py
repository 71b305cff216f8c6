"""What the steps of a build reach: the hosts it was given, and none without."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etude.environments.base import SandboxSpec
from etude.environments.images.build import BuildConfig, build_image
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import BuildError

ROOT = Path(__file__).parents[3]
NAME = "packages.example.com"
FETCH = "busybox wget -q -O /got http://{}:{}/package"
SMALL = {"memory_mb": 256, "disk_mb": 64, "pids": 64, "cpus": 1.0, "step_timeout_s": 30}


class Mirror:
    """Serves one thing to whoever asks, on this machine."""

    def __init__(self):
        self.heard, self.port = [], 0

    async def accept(self, reader, writer):
        self.heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\npackage\n")
        writer.close()


@pytest.fixture
def building(busybox, tmp_path):
    """Build a Dockerfile, whose text `ask` makes of the mirror's port; then give `look` the backend."""

    def builder(ask, look=None, hosts=(NAME,), **options):
        async def resolve(host, port):
            return ["127.0.0.1"]

        async def whole():
            mirror = Mirror()
            server = await asyncio.start_server(mirror.accept, "127.0.0.1", 0)
            mirror.port = server.sockets[0].getsockname()[1]
            egress = {"hosts": hosts, "ports": (mirror.port,), "networks": ("127.0.0.0/8",)}
            (tmp_path / "Dockerfile").write_text(ask(mirror.port))
            backend = NamespaceBackend(NamespaceConfig(images=busybox.config), resolve)
            try:
                async with asyncio.timeout(60):
                    config = BuildConfig(egress=egress, **SMALL)
                    built = await build_image(busybox, backend, tmp_path, config=config, name="built", **options)
                    return built, await look(backend) if look else None, mirror.heard
            finally:
                await backend.close()
                server.close()

        return asyncio.run(whole())

    return builder


def test_a_step_reaches_the_hosts_of_the_list(building):
    async def look(backend):
        box = await backend.create(SandboxSpec(image="built"))
        seen = await box.exec("cat /got; env | grep -i proxy")
        return seen.output

    text = "FROM busybox\nRUN " + FETCH + "\n"
    built, seen, heard = building(lambda port: text.format(NAME, port), look)
    assert built.ran == 1 and len(heard) == 1 and heard[0].startswith(b"GET /package HTTP/1.1\r\n")
    assert seen == b"package\n"  # and no trace of the proxy in the image
    assert "proxy" not in json.dumps(built.image.env)


def test_a_step_without_hosts_reaches_nothing_and_says_so(building):
    text = "FROM busybox\nRUN " + FETCH + "\n"
    with pytest.raises(BuildError, match=r"it had no network: `--egress HOST`"):
        building(lambda port: text.format(NAME, port), hosts=())


def test_a_step_that_is_refused_names_the_host(building):
    text = "FROM busybox\nRUN " + FETCH + "\n"
    with pytest.raises(BuildError, match=r"refused: elsewhere.example.com is not on the list of allowed hosts"):
        building(lambda port: text.format("elsewhere.example.com", port))


def test_a_step_that_says_so_has_no_network_whatever_was_run_before(building):
    def text(port):
        fetch = FETCH.format(NAME, port) + " || echo none > /got\n"
        return f"FROM busybox AS one\nRUN {fetch}FROM busybox\nRUN --network=none {fetch}"

    async def look(backend):
        return (await (await backend.create(SandboxSpec(image="built"))).exec("cat /got")).output

    assert building(text, target="one")[0].ran == 1
    assert building(text, look)[1] == b"none\n"


def test_the_command_line_gives_a_build_its_hosts(busybox, tmp_path):
    async def whole():
        mirror = Mirror()
        server = await asyncio.start_server(mirror.accept, "127.0.0.1", 0)
        mirror.port = server.sockets[0].getsockname()[1]
        (tmp_path / "Dockerfile").write_text("FROM busybox\nRUN " + FETCH.format("localhost", mirror.port) + "\n")
        (tmp_path / "build.toml").write_text(f"memory_mb = 256\ndisk_mb = 64\n[egress]\nports = [{mirror.port}]\n")
        command = [sys.executable, "-m", "etude.cli.main", "images", "build", str(tmp_path), "--json"]
        command += ["--dir", str(busybox.root), "--config", str(tmp_path / "build.toml")]
        refused = await asyncio.to_thread(run, command)
        given = ["--egress", "localhost", "--set", 'egress.networks=["127.0.0.0/8", "::1/128"]']
        done = await asyncio.to_thread(run, [*command, *given])
        server.close()
        return refused, done, mirror.heard

    refused, done, heard = asyncio.run(whole())
    assert refused.returncode == 1 and "it had no network" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 1 and len(heard) == 1
    assert "localhost" in done.stderr  # the proxy's log, beside the answer and not in it


def run(command):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)

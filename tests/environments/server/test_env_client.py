"""A remote server as a backend: what the harness uses beside a sandbox, it can use from afar."""

import asyncio
import io
import json
import tarfile
import time

import pytest
from scenarios import within

from etude.config import parse
from etude.environments.backends import open_backend
from etude.environments.base import Resources, SandboxSpec, Snapshot
from etude.environments.burst import burst
from etude.environments.remote import RemoteConfig
from etude.environments.wire import ServerError, answer_of, error_of
from etude.errors import ConfigError, DeadlineExceeded, SandboxError, SandboxSpoiled
from etude.rollouts.config import RunConfig


def remotely(server, scenario, deadline_s=120, **given):
    """Run `scenario(backend)` on a client of the server, within a deadline."""
    return within(deadline_s, lambda: open_backend(server.remote(**given)), scenario)


def test_a_sandbox_that_its_commands_spoiled_is_so_from_afar():
    told = error_of(answer_of(SandboxSpoiled("left no memory")).body, "server")
    assert type(told) is SandboxSpoiled and "left no memory" in str(told)
    assert not isinstance(error_of(answer_of(SandboxError("gone")).body, "server"), SandboxSpoiled)


def test_everything_a_sandbox_does_it_does_from_afar(server):
    async def scenario(backend):
        assert (backend.capabilities.name, backend.capabilities.isolation) == ("namespace", "namespace")
        box = await backend.create(SandboxSpec(files={"a": b"\xff\x00"}, resources=Resources(pids=77), ttl_s=500))
        result = await box.exec("cat a; printf $X; exit 5", env={"X": "y"}, max_output_bytes=1000)
        assert (result.output, result.exit_code, result.timed_out) == (b"\xff\x00y", 5, False)
        assert (await box.exec("sleep 60", timeout_s=0.2)).timed_out
        await box.write_file("/workspace/d/b", b"\x00data")
        assert await box.read_file("/workspace/d/b") == b"\x00data"
        assert [(entry.name, entry.is_dir) for entry in await box.list_dir("/workspace")] == [("a", False), ("d", True)]
        await box.upload(await box.download("/workspace/d"), "/workspace/e")
        assert await box.read_file("/workspace/e/b") == b"\x00data"
        await box.remove("/workspace/d", recursive=True)
        with pytest.raises(FileNotFoundError) as missing:
            await box.read_file("/workspace/d/b")
        assert missing.value.filename == "/workspace/d/b"
        with pytest.raises(IsADirectoryError):
            await box.read_file("/workspace")
        async with asyncio.timeout(60):
            while (await box.metrics()).pids:  # the one whose time was up is killed, and takes a moment to be gone
                await asyncio.sleep(0.02)
        await box.destroy()
        with pytest.raises(ServerError, match="is gone") as gone:
            await box.exec("true")
        assert gone.value.kind == "ended" and not gone.value.retryable

    remotely(server, scenario)


def test_names_that_are_not_utf8_survive(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        name = b"\xff name?&%".decode(errors="surrogateescape")
        await box.write_file(f"/workspace/{name}", b"x")
        assert [entry.name for entry in await box.list_dir("/workspace")] == [name]
        assert await box.read_file(f"/workspace/{name}") == b"x"

    remotely(server, scenario)


def test_states_forks_and_snapshots(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"1"}))
        snapshot = await box.snapshot()
        await box.write_file("/workspace/a", b"2")
        forks = await box.fork(3)
        then = await backend.create(SandboxSpec(base=snapshot))
        assert [await each.read_file("/workspace/a") for each in (then, *forks)] == [b"1", b"2", b"2", b"2"]
        await box.pause()
        with pytest.raises(ServerError, match="resume"):
            await box.exec("true")
        await box.resume()
        assert (await box.exec("cat a")).output == b"2"
        await backend.release(snapshot)
        await backend.release(snapshot)  # it is forgotten, whoever did it
        with pytest.raises(ServerError, match="no snapshot"):
            await backend.create(SandboxSpec(base=snapshot))
        with pytest.raises(ServerError, match="no snapshot"):
            await backend.create(SandboxSpec(base=Snapshot("snap-of-nobody")))

    remotely(server, scenario)


def test_background_commands(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        process = await box.start("echo begun; until [ -e go ]; do sleep 0.02; done; echo done; exit 3")
        stream = process.output()
        assert await anext(stream) == b"begun\n"
        with pytest.raises(DeadlineExceeded, match="to end"):
            await process.wait(0.2)
        again = await box.connect(process.id)
        assert [(each.id, each.running) for each in await box.processes()] == [(process.id, True)]
        await box.write_file("/workspace/go", b"")
        assert b"".join([piece async for piece in stream]) == b"done\n"
        assert b"".join([piece async for piece in again.output()]) == b"begun\ndone\n"
        assert (await again.wait(120)).exit_code == 3
        endless = await box.start("sleep 600")
        await endless.kill()
        assert (await endless.wait(120)).exit_code == 137
        with pytest.raises(ProcessLookupError):
            await box.connect(4711)

    remotely(server, scenario)


def test_who_is_cancelled_leaves_no_command_behind(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("echo $$ > pid; exec sleep 600", timeout_s=900))
        while (await box.exec("test -s pid")).exit_code:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await box.exec("kill -0 $(cat pid)")).exit_code == 1

    remotely(server, scenario)


def test_a_tar_that_leads_outside_is_refused_by_name(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        slip = io.BytesIO()
        with tarfile.open(fileobj=slip, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("../out"))
        with pytest.raises(PermissionError, match="outside"):
            await box.upload(slip.getvalue(), "/workspace/in")

    remotely(server, scenario)


def test_a_client_waits_while_the_server_is_busy(server):
    """The server takes six starts at once; twelve all come through, those told to come again included."""

    async def scenario(backend):
        boxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(12)))
        assert len({box.id for box in boxes}) == 12

    remotely(server, scenario)
    with pytest.raises(ServerError, match="waiting to start") as busy:
        remotely(server, scenario, busy_s=0.01)
    assert busy.value.kind == "busy" and busy.value.retryable


def test_a_time_to_live_ends_and_can_be_set_anew(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(ttl_s=300))
        await box.set_ttl(3000)
        (told,) = [each for each in await listed(backend) if each["id"] == box.id]
        assert 2000 < told["expires_at"] - time.time() <= 3000
        await box.set_ttl(1.5)
        for command in ("sleep 600", "true"):  # one that is cut, one that comes too late
            with pytest.raises(ServerError, match=r"1\.5 s to live ran out") as expired:
                await box.exec(command, timeout_s=900)
            assert expired.value.kind == "expired" and not expired.value.retryable

    async def listed(backend):
        return json.loads(await backend.connection.get("/sandboxes", "the list of sandboxes"))

    remotely(server, scenario)


def test_a_spec_gives_its_sandbox_a_time_to_live(server):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(ttl_s=0.5))
        with pytest.raises(ServerError, match=r"0\.5 s to live ran out"):
            await box.exec("sleep 600", timeout_s=900)

    remotely(server, scenario)


def test_policy_is_kept_or_refused_at_opening(server):
    with pytest.raises(ConfigError, match="isolation = 'vm' is not offered"):
        server.client(isolation="vm")
    with pytest.raises(ConfigError, match="backend = 'qemu'"):
        server.client(backend="qemu")
    with pytest.raises(SandboxError, match="etude environments serve"):
        open_backend(RemoteConfig(url="http://127.0.0.1:1", token_file=server.config.token_path))
    other = server.directory / "other"
    other.write_text("x" * 40)
    other.chmod(0o600)
    with pytest.raises(ServerError, match="token"):
        open_backend(RemoteConfig(url=server.url, token_file=other))


def test_closing_takes_down_what_this_client_made(server):
    async def scenario(backend):
        other = server.client()
        mine = await backend.create(SandboxSpec())
        theirs = await other.create(SandboxSpec())
        await theirs.snapshot()
        await other.close()
        with pytest.raises(ServerError, match="gone"):
            await backend.adopt(theirs.id).exec("true")
        assert (await mine.exec("true")).exit_code == 0

    remotely(server, scenario)


def test_a_recipe_names_a_server_and_wrong_keys_name_their_path(server):
    recipe = {"name": "r", "environment": {"kind": "remote", "url": server.url}}
    assert isinstance(parse(recipe, RunConfig, "r").environment, RemoteConfig)
    assert parse({"name": "r", "environment": {"limits": "rlimit"}}, RunConfig, "r").environment.kind == "namespace"
    with pytest.raises(ConfigError, match=r"environment\.limits: unknown key; known here: .*token_file"):
        parse({"name": "r", "environment": {**recipe["environment"], "limits": "rlimit"}}, RunConfig, "r")
    with pytest.raises(ConfigError, match=r"environment\.bogus: unknown key; known here: .*state_dir"):
        parse({"name": "r", "environment": {"bogus": 1}}, RunConfig, "r")
    kinds = ("cluster", "docker", "firecracker", "namespace", "qemu", "remote", "routed")
    with pytest.raises(ConfigError, match=f"'nowhere' is not known; there is {', '.join(kinds)}"):
        parse({"name": "r", "environment": {"kind": "nowhere"}}, RunConfig, "r")


def test_a_burst_counts_what_it_asks_for(server):
    figures = asyncio.run(burst(server.remote(), 8, "echo x"))
    assert figures["count"] == 8 and figures["failed"] == 0
    assert 0 < figures["create_ms_p50"] <= figures["create_ms_p99"] <= figures["create_ms_max"]
    with pytest.raises(SandboxError, match=r"none of 2 .* ended with 3"):
        asyncio.run(burst(server.remote(), 2, "exit 3"))

"""The namespace backend's contract: files, commands, snapshots, concurrency, errors."""

import asyncio
import io
import os
import tarfile

import pytest
from proofs import often

from etude.environments.backends import open_backend
from etude.environments.base import Resources, SandboxSpec
from etude.environments.channel import Channel
from etude.environments.guest_sandbox import SLOWEST_ENTRIES_S
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError, DeadlineExceeded, SandboxError


def test_fifty_at_once(run):
    async def scenario(backend):
        async def one(number):
            box = await backend.create(SandboxSpec(files={"n": str(number).encode()}))
            outputs = await asyncio.gather(*(box.exec(f"sleep 0.1; cat n; echo {i}") for i in range(3)))
            assert [out.output for out in outputs] == [f"{number}{i}\n".encode() for i in range(3)]
            await box.destroy()

        await asyncio.gather(*(one(number) for number in range(50)))

    run(scenario)


def test_an_archive_of_many_entries_is_waited_for_as_long_as_they_may_take(run, monkeypatch):
    """A tree of very many empty files has few bytes; what other words its files hold buys it no more than its size."""
    waits = []
    call = Channel.call

    async def heard(channel, verb, wait_s, **arguments):
        if verb == "upload":
            waits.append(wait_s)
        return await call(channel, verb, wait_s, **arguments)

    monkeypatch.setattr(Channel, "call", heard)

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        waits.clear()
        for files in ({"a": bytes(512)}, {f"d{n}/f": b"" for n in range(1000)}, {"a": b"ustar" * 102}):
            await box.upload(tar_of(files), "/workspace")
        one, many, words = waits
        assert many - one > 999 / SLOWEST_ENTRIES_S and words - one < 20 / SLOWEST_ENTRIES_S, "an archive has 20 blocks"
        assert (await box.exec("ls -d d*/f | wc -l")).output == b"1000\n"

    run(scenario)


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_extra_binds_and_environment(run, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "helper.py").write_text("value = 7\n")
    (tmp_path / "site").chmod(0o755)
    site = tmp_path / "site"
    config = NamespaceConfig(
        binds={"/opt/site": site, "/home/agent/lib": site, "/etc/ssl": site}, env={"PYTHONPATH": "/opt/site"}
    )

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec("python3 -c 'import helper; print(helper.value)'; touch /opt/site/x 2>&1 | tail -c 22")
        assert result.output == b"7\nRead-only file system\n"
        assert (await box.exec("ls ~/lib; ls /etc/ssl")).output == b"helper.py\nhelper.py\n"

    run(scenario, config)


@pytest.mark.parametrize("inside", ["relative", "/workspace/x", "/proc", "/", "/opt/../workspace"])
def test_binds_over_what_is_taken_are_refused(run, tmp_path, inside):
    with pytest.raises(ConfigError, match="binds"):
        NamespaceBackend(NamespaceConfig(binds={inside: tmp_path}))
    with pytest.raises(ConfigError, match="not a directory"):
        NamespaceBackend(NamespaceConfig(binds={"/opt/x": tmp_path / "none"}))


@pytest.mark.parametrize("inside", ["/var/tmp/x", "/etc/passwd", "/etc/mtab/x"])
def test_no_bind_is_made_through_a_link_or_over_a_file(run, tmp_path, inside):
    with pytest.raises(ConfigError, match=r"is a (link|file) in a sandbox"):
        NamespaceBackend(NamespaceConfig(binds={inside: tmp_path}))


def test_a_strict_umask_changes_nothing(run, monkeypatch, tmp_path):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"deep/a": b"1"}))
        assert (await box.exec("cat deep/a /etc/hostname; echo 2 > deep/b")).output == b"1sandbox\n"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where nothing is built yet
    before = os.umask(0o077)
    try:
        run(scenario, NamespaceConfig(state_dir=tmp_path / "state"))
    finally:
        os.umask(before)


WATCHING = b"""import os, signal, time
seen = []
for number in (signal.SIGCONT, signal.SIGCHLD):
    signal.signal(number, lambda number, frame: seen.append(number))
if os.fork() == 0:
    time.sleep(600)
while True:
    with open("new", "w") as file: file.write(f"{len(seen)} {time.monotonic()}")
    os.replace("new", "seen")
    time.sleep(0.01)
"""


@pytest.mark.parametrize("limits", ["cgroup", "rlimit"])
def test_nobody_inside_can_tell_a_pause_where_groups_can_freeze(run, limits):
    async def scenario(backend):
        async def newer(than):
            while len(said := (await box.exec("cat seen")).output.split()) != 2 or said[1:] == than:
                await asyncio.sleep(0.01)
            return said

        box = await backend.create(SandboxSpec(files={"watching.py": WATCHING}))
        await box.start("exec python3 watching.py")
        before = await newer([])
        await box.pause()
        await box.resume()
        count, *_ = await newer((await newer(before[1:]))[1:])
        assert (count == b"0") == (limits == "cgroup" and box._freezer is not None)

    run(scenario, NamespaceConfig(limits=limits))


def test_who_starts_processes_all_the_time_is_stopped_all_the_same(run):
    """The shell waits in `vfork` most of the time; version 1 of the freezer forgets some of those who go there."""

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        for _ in range(4):
            await box.start("while true; do ls a; done", timeout_s=None)
        for _ in range(often(100, 300)):
            await box.pause()
            await box.resume()

    run(scenario)


def test_a_start_that_fails_says_why_and_leaves_nothing(run):
    async def scenario(backend):
        backend.launcher._isolation.append("--no-such-option")
        with pytest.raises(SandboxError, match="no-such-option"):
            await backend.create(SandboxSpec())
        assert not list((backend.store.root / "b").iterdir())

    run(scenario)


def test_a_start_past_its_deadline_names_it(run, monkeypatch):
    monkeypatch.setattr(NamespaceConfig, "start_timeout_s", 1e-4)

    async def scenario(backend):
        with pytest.raises(DeadlineExceeded, match="to start"):
            await backend.create(SandboxSpec())
        assert not list((backend.store.root / "b").iterdir())

    run(scenario)


def test_unknown_image_and_backend_protocol(run):
    async def scenario(backend):
        with pytest.raises(ConfigError, match="image"):
            await backend.create(SandboxSpec(image="debian"))
        await backend.create(SandboxSpec(resources=Resources(memory_mb=64)))
        assert backend.capabilities.snapshot == "disk" and backend.capabilities.network

    run(scenario)
    backend = open_backend()
    assert isinstance(backend, NamespaceBackend)
    asyncio.run(backend.close())

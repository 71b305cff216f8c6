"""The namespace backend's contract: files, commands, snapshots, concurrency, errors."""

import asyncio
import os

import pytest

from etude.environments.backends import open_backend
from etude.environments.base import Resources, SandboxSpec, Snapshot
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError, DeadlineExceeded, SandboxError


def test_files_of_the_spec_are_the_workspace(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"pkg/mod.py": b"x = 1\n", "README": b"hello"}))
        assert await box.read_file("/workspace/pkg/mod.py") == b"x = 1\n"
        assert [(entry.name, entry.is_dir, entry.size) for entry in await box.list_dir("/workspace")] == [
            ("README", False, 5),
            ("pkg", True, (await box.list_dir("/workspace"))[1].size),
        ]
        assert (await box.exec("python3 -c 'import pkg.mod; print(pkg.mod.x)'")).output == b"1\n"

    run(scenario)


def test_writes_make_parents_and_replace(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"long content"}))
        await box.write_file("/workspace/a", b"short")
        await box.write_file("/workspace/deep/er/b", bytes(range(256)) * 4000)
        await box.write_file("/tests/check.py", b"print('ok')")
        assert await box.read_file("/workspace/a") == b"short"
        assert await box.read_file("/workspace/deep/er/b") == bytes(range(256)) * 4000
        assert (await box.exec("python3 /tests/check.py; echo 1 > /logs/reward.txt")).output == b"ok\n"
        assert await box.read_file("/logs/reward.txt") == b"1\n"

    run(scenario)


def test_sandboxes_of_one_task_share_files_but_not_changes(run):
    async def scenario(backend):
        spec = SandboxSpec(files={"a": b"1"})
        first, second = await asyncio.gather(backend.create(spec), backend.create(spec))
        await first.write_file("/workspace/a", b"2")
        await first.exec("touch /workspace/new")
        assert await second.read_file("/workspace/a") == b"1"
        assert [entry.name for entry in await second.list_dir("/workspace")] == ["a"]
        third = await backend.create(spec)
        assert await third.read_file("/workspace/a") == b"1"

    run(scenario)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/workspace/none", FileNotFoundError),
        ("/workspace", IsADirectoryError),
        ("/workspace/pipe", PermissionError),
        ("/dev/zero", PermissionError),
        ("/workspace/closed", PermissionError),
        ("/workspace/a\0b", OSError),
        ("/workspace/" + "n" * 300, OSError),
        ("/workspace/loop", OSError),
    ],
)
def test_reading_what_cannot_be_read_fails_as_open_does(run, path, error):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("mkfifo pipe; echo x > closed; chmod 0 closed; ln -s loop loop")
        with pytest.raises(error):
            await box.read_file(path)

    run(scenario)


def test_a_file_over_the_limit_is_refused_not_cut(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"x" * 100}))
        assert await box.read_file("/workspace/a", max_bytes=100) == b"x" * 100
        with pytest.raises(OSError, match="too large"):
            await box.read_file("/workspace/a", max_bytes=99)

    run(scenario)


@pytest.mark.parametrize(
    ("path", "error"),
    [("/workspace", IsADirectoryError), ("/usr/bin/x", OSError), ("/workspace/file/below", NotADirectoryError)],
)
def test_writing_where_nothing_can_be_written_fails_as_open_does(run, path, error):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"file": b""}))
        with pytest.raises(error):
            await box.write_file(path, b"x")
        with pytest.raises(NotADirectoryError):
            await box.list_dir("/workspace/file")
        with pytest.raises(FileNotFoundError):
            await box.list_dir("/workspace/none")

    run(scenario)


def test_snapshot_carries_the_workspace_and_forks_are_independent(run):
    async def scenario(backend):
        parent = await backend.create(SandboxSpec(files={"keep": b"k", "gone": b"g", "dir/old": b"o"}))
        await parent.exec("rm gone; rm -r dir; mkdir dir; echo v1 > dir/new; ln -s keep link; echo x > /tests/planted")
        snapshot = await parent.snapshot()
        await parent.exec("echo v2 > dir/new")
        one, two = await asyncio.gather(*(backend.create(SandboxSpec(base=snapshot)) for _ in range(2)))
        await one.exec("echo one > dir/new; rm keep")
        listing = (await two.exec("ls -R; cat dir/new link; ls /tests")).output
        assert listing == b".:\ndir\nkeep\nlink\n\n./dir:\nnew\nv1\nk"
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
        first, second = [len(await fork.read_file(f"/workspace/{name}")) for name in "ab"]
        assert 0 <= first - second <= 2  # the copy is of one moment
        before = len(await box.read_file("/workspace/a"))
        while len(await box.read_file("/workspace/a")) <= before:  # the scenario's deadline bounds this
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert len(await fork.read_file("/workspace/a")) == first  # its processes did not come along

    run(scenario)


def test_fifty_at_once(run):
    async def scenario(backend):
        async def one(number):
            box = await backend.create(SandboxSpec(files={"n": str(number).encode()}))
            outputs = await asyncio.gather(*(box.exec(f"sleep 0.1; cat n; echo {i}") for i in range(3)))
            assert [out.output for out in outputs] == [f"{number}{i}\n".encode() for i in range(3)]
            await box.destroy()

        await asyncio.gather(*(one(number) for number in range(50)))

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


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "."])
def test_files_outside_the_workspace_are_refused(run, path):
    async def scenario(backend):
        with pytest.raises(ConfigError, match="below the workspace"):
            await backend.create(SandboxSpec(files={path: b""}))

    run(scenario)


def test_extra_binds_and_environment(run, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "helper.py").write_text("value = 7\n")
    (tmp_path / "site").chmod(0o755)
    site = tmp_path / "site"
    config = NamespaceConfig(binds={"/opt/site": site, "/home/agent/lib": site}, env={"PYTHONPATH": "/opt/site"})

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        result = await box.exec("python3 -c 'import helper; print(helper.value)'; touch /opt/site/x 2>&1 | tail -c 22")
        assert result.output == b"7\nRead-only file system\n"
        assert (await box.exec("ls ~/lib")).output == b"helper.py\n"

    run(scenario, config)


@pytest.mark.parametrize("inside", ["relative", "/workspace/x", "/proc", "/", "/opt/../workspace"])
def test_binds_over_what_is_taken_are_refused(run, tmp_path, inside):
    with pytest.raises(ConfigError, match="binds"):
        NamespaceBackend(NamespaceConfig(binds={inside: tmp_path}))
    with pytest.raises(ConfigError, match="not a directory"):
        NamespaceBackend(NamespaceConfig(binds={"/opt/x": tmp_path / "none"}))


def test_a_strict_umask_changes_nothing(run, tmp_path):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"deep/a": b"1"}))
        assert (await box.exec("cat deep/a /etc/hostname; echo 2 > deep/b")).output == b"1sandbox\n"

    before = os.umask(0o077)
    try:
        run(scenario, NamespaceConfig(cache_dir=tmp_path / "cache", state_dir=tmp_path / "state"))
    finally:
        os.umask(before)


def test_a_start_that_fails_says_why_and_leaves_nothing(run):
    async def scenario(backend):
        backend.launcher._isolation.append("--no-such-option")
        with pytest.raises(SandboxError, match="no-such-option"):
            await backend.create(SandboxSpec())
        assert not list((backend.store.root / "b").iterdir())

    run(scenario)


def test_a_start_past_its_deadline_names_it(run):
    async def scenario(backend):
        with pytest.raises(DeadlineExceeded, match="to start"):
            await backend.create(SandboxSpec())
        assert not list((backend.store.root / "b").iterdir())

    run(scenario, NamespaceConfig(start_timeout_s=1e-4))


def test_unknown_image_and_backend_protocol(run):
    async def scenario(backend):
        with pytest.raises(ConfigError, match="image"):
            await backend.create(SandboxSpec(image="debian"))
        await backend.create(SandboxSpec(resources=Resources(memory_mb=64)))
        assert backend.capabilities.snapshot == "disk" and not backend.capabilities.network

    run(scenario)
    backend = open_backend()
    assert isinstance(backend, NamespaceBackend)
    asyncio.run(backend.close())

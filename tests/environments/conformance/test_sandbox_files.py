"""Files of a sandbox: what the spec lays down, reading, writing, listing, and how each fails."""

import asyncio

import pytest

from etude.environments.base import SandboxSpec
from etude.errors import ConfigError


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


def test_names_need_not_be_utf8(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"d/\udcff": b"1"}))
        await box.write_file("/workspace/d/\udcfe", b"2")
        assert [entry.name for entry in await box.list_dir("/workspace/d")] == ["\udcfe", "\udcff"]
        assert (await box.exec("cat d/*")).output == b"21"

    run(scenario)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", ".", "a\0b", "\ud800"])
def test_files_with_impossible_names_are_refused(run, path):
    async def scenario(backend):
        with pytest.raises(ConfigError, match="files: "):
            await backend.create(SandboxSpec(files={path: b""}))

    run(scenario)

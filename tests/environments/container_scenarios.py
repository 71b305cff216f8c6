"""What every backend of containers must do alike, whoever makes the containers; each on an image with nothing in it."""

import asyncio

import pytest

from etude.environments.base import ARCHIVE_MAX, Resources, SandboxSpec
from etude.errors import ConfigError, SandboxError


async def commands_files_and_processes(backend):
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


async def a_snapshot_is_the_workspace_and_a_fork_starts_from_it(backend):
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


async def a_workspace_larger_than_an_archive_is_forked_too(backend):
    box = await backend.create(SandboxSpec(resources=Resources(disk_mb=128)))
    each = ARCHIVE_MAX * 6 // 10
    await box.exec(f"mkdir -p d/e; head -c {each} /dev/urandom > d/a; head -c {each} /dev/urandom > d/e/b; echo c > c")
    (fork,) = await box.fork(1)
    sums = "sha256sum d/a d/e/b c"
    assert (await fork.exec(sums, timeout_s=60)).output == (await box.exec(sums, timeout_s=60)).output


async def pause_and_destroy(backend):
    box = await backend.create(SandboxSpec())
    waits = "echo > n; until [ -e go ]; do sleep 0.02; done"
    waiting = asyncio.ensure_future(box.exec(waits, timeout_s=4.0))
    await box.exec("until [ -s n ]; do sleep 0.01; done")
    await box.pause()
    await asyncio.sleep(4.5)  # its whole time, were it counted
    await box.resume()
    await box.write_file("/workspace/go", b"")
    assert not (await waiting).timed_out
    running = asyncio.ensure_future(box.exec("sleep 60"))
    await asyncio.sleep(0.1)
    await asyncio.gather(box.destroy(), box.destroy())
    with pytest.raises(SandboxError, match="destroyed"):
        await running


async def a_workspace_begins_with_the_images_own_files(backend):
    """Which are src/app.py, a program that prints 1, and README."""
    box = await backend.create(SandboxSpec(files={"README": b"task's"}))
    assert (await box.exec("python3 src/app.py; cat README; stat -c %u README")).output == b"1\ntask's1000\n"
    await box.remove("/workspace/src", recursive=True)
    (fork,) = await box.fork(1)
    assert [entry.name for entry in await fork.list_dir("/workspace")] == ["README"]


async def hosts_to_reach_are_refused_not_forgotten(backend):
    assert not backend.capabilities.network
    with pytest.raises(ConfigError, match=f"egress: the {backend.capabilities.name} backend"):
        await backend.create(SandboxSpec(egress=("mirror.example.com",)))
    assert not backend.live
    assert (await (await backend.create(SandboxSpec(egress=()))).exec("echo up")).output == b"up\n"


SHARED = [
    commands_files_and_processes,
    a_snapshot_is_the_workspace_and_a_fork_starts_from_it,
    a_workspace_larger_than_an_archive_is_forked_too,
    pause_and_destroy,
    hosts_to_reach_are_refused_not_forgotten,
]

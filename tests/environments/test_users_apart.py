"""Each sandbox is users of its own on the host, with the kernel's quotas of a user to itself."""

import asyncio
import os
from pathlib import Path

import pytest

from etude.environments.base import SandboxSpec
from etude.environments.namespace import NamespaceBackend
from etude.environments.uids import FIRST_UID, RANGE, UidPool
from etude.errors import ConfigError

USE_UP = """python3 -c '
import ctypes, time
inotify_init, count = ctypes.CDLL(None).inotify_init, 0
while inotify_init() >= 0: count += 1
print(count, flush=True)
time.sleep({})'"""


@pytest.mark.parametrize("ranges", [1, 64])
def test_no_sandbox_uses_up_what_the_kernel_gives_a_user(run, ranges):
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    if int(Path("/proc/sys/fs/inotify/max_user_instances").read_text()) > 900:
        pytest.skip("a process runs out of descriptors before its user runs out of inotify instances")

    async def scenario(backend):
        if ranges > 1 and not backend.uids.mapped:
            pytest.skip("this file system or kernel maps no owners by mount")
        one, two = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        using = await one.start(USE_UP.format(600))
        taken = int(await anext(using.output()))
        left = int((await two.exec(USE_UP.format(0))).output)
        assert taken > 0 and left == (0 if ranges == 1 else taken)

    run(scenario, uid_ranges=ranges)


def test_files_are_the_sandboxs_own_in_each_of_a_line_of_forks(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"d/a": b"1"}))
        for number in range(3):
            owners = (await box.exec("stat -c '%u %g' . d d/a && echo more >> d/a && chmod 640 d/a")).output
            assert owners == b"1000 1000\n" * 3
            await box.exec(f"touch made-{number}; chmod u+s made-{number}")
            (box,) = await box.fork(1)
        assert await box.read_file("/workspace/d/a") == b"1" + b"more\n" * 3
        listing = (await box.exec("stat -c '%u %a' made-*")).output
        assert listing == b"1000 4644\n" * 3
        kept = [path for path in (backend.store.root / "s").rglob("made-*") if os.geteuid() == 0]
        assert all(path.stat().st_uid == backend.uids.stored((1000, 1000))[0] for path in kept)
        for name in "ls":  # a file that runs as its owner must be out of reach of the host's users
            assert (backend.store.root / name).stat().st_mode & 0o077 == 0

    run(scenario)


def test_ranges_are_given_back_and_shared_only_when_all_are_taken():
    uids = UidPool(FIRST_UID, 3, mapped=True)
    taken = [uids.acquire() for _ in range(3)]
    assert sorted(taken) == [FIRST_UID + number * RANGE for number in range(3)]
    shared = [uids.acquire() for _ in range(3)]
    assert sorted(shared) == sorted(taken)  # evenly
    uids.release(taken[0])
    assert uids.acquire() == taken[0]  # the one with fewest
    for first in (*taken, *shared):
        uids.release(first)
    assert len({uids.acquire() for _ in range(3)}) == 3


def test_numbers_on_disk():
    mapped, alike = UidPool(FIRST_UID, 8, mapped=True), UidPool(FIRST_UID, 1, mapped=False)
    assert mapped.stored((0, 5)) == (0, 5) and alike.stored((0, 5)) == (FIRST_UID, FIRST_UID + 5)
    first = mapped.acquire()
    assert mapped.shift(first) == first and alike.shift(alike.acquire()) == 0


def test_more_users_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="uid_ranges"):
        NamespaceBackend(uid_ranges=60_000)

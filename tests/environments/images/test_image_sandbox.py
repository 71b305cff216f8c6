"""Sandboxes that stand on an image: what they see, who they are, what of theirs is kept."""

import array
import asyncio
import contextlib
import fcntl
import os
import shutil
from pathlib import Path

import pytest
from own_leftovers import left

from etude.environments.base import SandboxSpec
from etude.environments.images.store import Described, ImageStore
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.environments.roots import ImagesConfig
from etude.environments.uids import RANGE
from etude.errors import ConfigError

NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704  # of linux/nsfs.h


def on_images(store, scenario):
    """Run `scenario(backend)` on a backend that finds its images in this store."""

    async def whole():
        backend = NamespaceBackend(NamespaceConfig(images=store.config))
        try:
            async with asyncio.timeout(60):
                return await scenario(backend)
        finally:
            await backend.close()

    result = asyncio.run(whole())
    assert left() == []
    return result


async def said(box, command, **options):
    result = await box.exec(command, **options)
    return result.exit_code, result.output.decode()


def test_the_image_is_all_there_is_of_the_file_system(busybox):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(image="busybox", files={"task.txt": b"do"}))
        assert (await said(box, "readlink -f /bin/sh; ls /usr; cat task.txt"))[1] == "/bin/busybox\nshare\ndo"
        assert (await said(box, "id -u; pwd"))[1] == "0\n/workspace\n"
        code, output = await said(box, "touch /bin/x")
        assert code == 1 and "Read-only" in output
        assert (await said(box, "echo new > made; chmod 600 task.txt; stat -c '%u %g' made task.txt"))[
            1
        ] == "0 0\n0 0\n"

    on_images(busybox, scenario)


def test_a_directory_image_serves_as_an_erofs_one_does(tmp_path, rootfs):
    store = ImageStore(ImagesConfig(dir=tmp_path / "directories", format="directory"))
    image = store.add_directory(rootfs, name="plain")
    assert image.path.is_dir()

    async def scenario(backend):
        box = await backend.create(SandboxSpec(image="plain"))
        assert (await said(box, "/bin/stat -c '%u %g' /home/agent /bin/busybox"))[0] == 0
        return await said(box, "stat -c '%u' /bin/busybox")

    assert on_images(store, scenario) == (0, "0\n")


def serves(process, name):
    """Whether it is the agent of that sandbox."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[1:2] == [b"serve"] and name in (
            process / "cmdline"
        ).read_text()
    except OSError:
        return False


def test_the_images_user_is_the_sandboxes_user_and_has_no_capability(store, rootfs):
    store.add_directory(rootfs, Described(user="agent"), name="as-agent")

    async def scenario(backend):
        for name, uid in (("as-agent", "1000"), ("as-root", "0")):
            box = await backend.create(SandboxSpec(image=name))
            assert (await said(box, "id -u"))[1] == f"{uid}\n"
            assert "CapEff:\t0000000000000000" in (await said(box, "grep Cap /proc/self/status"))[1]
            for attack in ("mount -t tmpfs x /workspace", "unshare -U true", "mknod n c 1 3", "chown 5 /workspace"):
                code, output = await said(box, attack)
                assert code != 0, (attack, output)
            for name in ("oom_score_adj", "autogroup", "task/1/oom_score_adj"):  # its uid is whose they are
                await said(box, f"echo 19 > /proc/1/{name}")
            process = next(path for path in Path("/proc").glob("[0-9]*") if serves(path, box.id))
            assert (process / "oom_score_adj").read_text() == "500\n" and "nice 0" in (
                process / "autogroup"
            ).read_text()

    store.add_directory(rootfs, Described(user="0"), name="as-root")
    on_images(store, scenario)


def test_the_working_directory_of_the_image_is_the_workspace(store, rootfs, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(rootfs, tree, symlinks=True)
    (tree / "srv" / "app").mkdir(parents=True)
    (tree / "srv" / "app" / "main.py").write_text("x = 1\n")
    (tree / "app").symlink_to("/srv/app")
    image = store.add_directory(tree, Described(workdir="/app"), name="app")
    assert image.workspace == "/srv/app"  # as resolved inside; the host's /srv/app is never looked at

    async def scenario(backend):
        box = await backend.create(SandboxSpec(image="app", files={"extra": b"e"}))
        assert (await said(box, "ls; echo y > main.py; cat /app/main.py /srv/app/extra"))[1] == "extra\nmain.py\ny\ne"
        fork = await backend.create(SandboxSpec(image="app", base=await box.snapshot(), files={"tests": b"t"}))
        assert (await said(fork, "cat main.py tests; stat -c %u main.py tests"))[1] == "y\nt0\n0\n"
        clean = await backend.create(SandboxSpec(image="app"))
        assert (await said(clean, "cat main.py"))[1] == "x = 1\n"

    on_images(store, scenario)


def test_a_snapshot_goes_on_only_on_its_own_image(busybox):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(image="busybox"))
        await box.exec("echo 1 > one")
        snapshot = await box.snapshot()
        with pytest.raises(ConfigError, match="name its own image"):
            await backend.create(SandboxSpec(base=snapshot))

    on_images(busybox, scenario)


def owners_of_namespaces(pid):
    """Who made the user namespace of a process, and those around it, the outermost last, as the host sees them."""
    owners, handle = [], os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    with contextlib.suppress(PermissionError):  # there is none around the host's
        while True:
            owner = array.array("I", [0])
            fcntl.ioctl(handle, NS_GET_OWNER_UID, owner)
            owners.append(owner[0])
            around = fcntl.ioctl(handle, NS_GET_PARENT)
            os.close(handle)
            handle = around
    os.close(handle)
    return owners


def test_each_sandbox_is_users_of_its_own_on_the_host(busybox):
    async def scenario(backend):
        if not backend.uids.mapped:
            pytest.skip("this file system or kernel maps no owners by mount")
        seen = []
        for _ in range(2):
            box = await backend.create(SandboxSpec(image="busybox", files={"a": b"1"}))
            assert (await said(box, "stat -c %u a"))[1] == "0\n"
            (agent,) = Path(f"/proc/{box._pid}/task/{box._pid}/children").read_text().split()
            status = Path(f"/proc/{agent}/status").read_text()
            seen.append(int(status.partition("\nUid:")[2].split()[0]))
            assert seen[-1] in owners_of_namespaces(agent)[:-1]  # the kernel counts by who made it, too
            assert owners_of_namespaces(agent)[-2] != 0
        assert seen[0] != seen[1] and (seen[0] - seen[1]) % RANGE == 0

    on_images(busybox, scenario)


@pytest.mark.parametrize("point", ["tests", "workspace", "guest", "home"])
def test_an_image_cannot_lead_the_sandboxes_mounts_elsewhere(store, rootfs, tmp_path, point):
    tree = tmp_path / "tree"
    shutil.copytree(rootfs, tree, symlinks=True)
    shutil.rmtree(tree / "home")
    (tree / point).symlink_to("/oldroot/tmp")  # where bubblewrap has the host's root while it mounts
    store.add_directory(tree, name="leading")

    async def scenario(backend):
        with pytest.raises(ConfigError, match=f"/{point}.* is, or lies below, a symlink"):
            await backend.create(SandboxSpec(image="leading"))

    on_images(store, scenario)


def test_an_unknown_image_says_how_to_import_it(store):
    async def scenario(backend):
        with pytest.raises(ConfigError, match=r"python:3.12.*known names: none yet.*images add .*--name python:3.12"):
            await backend.create(SandboxSpec(image="python:3.12"))

    on_images(store, scenario)


def test_sandboxes_share_one_mount_which_the_host_does_not_see(busybox):
    async def scenario(backend):
        boxes = await asyncio.gather(*(backend.create(SandboxSpec(image="busybox")) for _ in range(5)))
        assert "erofs" not in Path("/proc/self/mountinfo").read_text()
        inside = Path(backend.roots.find("busybox").mounts).parents[1] / "mountinfo"
        assert inside.read_text().count(" erofs ") == 1
        return {(await said(box, "cat /etc/group"))[0] for box in boxes}

    assert on_images(busybox, scenario) == {0}


def test_what_is_in_use_is_not_collected(busybox):
    image = busybox.get("busybox")

    async def scenario(backend):
        box = await backend.create(SandboxSpec(image="busybox"))
        busybox.unname("busybox")
        assert busybox.gc().images == []
        assert (await said(box, "cat /etc/group"))[0] == 0

    on_images(busybox, scenario)
    assert busybox.gc().images == [image.id] and not image.path.exists()

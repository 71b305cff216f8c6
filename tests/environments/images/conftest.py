"""Root file systems small enough to make many of: busybox, its links, two users."""

import os
import shutil
from pathlib import Path

import pytest
from debian_packages import program

from etude.environments.images.store import Described, ImageStore
from etude.environments.roots import ImagesConfig

BUSYBOX = Path("/bin/busybox")


@pytest.fixture(scope="session", autouse=True)
def tools():
    if os.geteuid() != 0:
        pytest.skip("images need root: their files have owners")
    program("mkfs.erofs", "erofs-utils")
    program("busybox", "busybox-static")


@pytest.fixture(scope="session")
def rootfs(tools, tmp_path_factory):
    """A directory holding a root file system with a shell."""
    root = tmp_path_factory.mktemp("rootfs")
    root.chmod(0o755)
    for name in ("bin", "etc", "tmp", "home/agent", "usr/share"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    applets = (
        "sh ls cat echo id touch mkdir rm mv cp ln chown chmod chgrp stat readlink true false sleep env pwd su find"
    )
    for applet in [*applets.split(), "test", "[", "head", "sort", "adduser", "mount", "mknod", "unshare", "grep", "wc"]:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001:a:/home/agent:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nagent:x:1001:\nstaff:x:50:\n")
    (root / "tmp").chmod(0o1777)
    os.chown(root / "home" / "agent", 1000, 1001)
    return root


@pytest.fixture
def store(tmp_path):
    return ImageStore(ImagesConfig(dir=tmp_path / "images"))


@pytest.fixture
def busybox(store, rootfs):
    """The store with the image `busybox` in it."""
    store.add_directory(rootfs, Described(env=(("PATH", "/bin"),)), name="busybox")
    return store

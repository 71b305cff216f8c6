"""Files of a directory that somebody else keeps changing: what is read is regular, bounded, and in it."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.host import beneath

MOST = 1 << 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("secret")
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "plain").write_text("plain")
    return tmp_path / "root"


def unix(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 900 << 30)


REFUSED: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "link": (lambda at: (at / "x").symlink_to("sub/plain"), "x", errno.ELOOP),
    "link out": (lambda at: (at / "x").symlink_to("../outside/key"), "x", errno.ELOOP),
    "through a link": (lambda at: (at / "x").symlink_to("../outside"), "x/key", errno.ENOTDIR),
    "up": (lambda at: None, "sub/../../outside/key", errno.EXDEV),
    "absolute": (lambda at: None, "/etc/passwd", errno.EXDEV),
    "nul": (lambda at: None, "sub/\0plain", errno.EINVAL),
    "pipe": (lambda at: os.mkfifo(at / "x"), "x", errno.EINVAL),
    "socket": (lambda at: unix(at / "x"), "x", errno.EINVAL),
    "directory": (lambda at: None, "sub", errno.EINVAL),
    "sparse": (lambda at: sparse(at / "x"), "x", errno.EFBIG),
    "hard link": (lambda at: os.link(at.parent / "outside" / "key", at / "x"), "x", errno.EMLINK),
    "not there": (lambda at: None, "x/y", errno.ENOENT),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_plain_file_of_the_directory_is_refused(root: Path, what: str) -> None:
    plant, path, number = REFUSED[what]
    plant(root)
    with pytest.raises(OSError) as refused:
        beneath.read(root, path, MOST, alone=True)
    assert refused.value.errno == number
    with pytest.raises(OSError):
        beneath.copy(root, path, root.parent / "copy", MOST) if what != "hard link" else beneath.read(root, "no", MOST)
    assert beneath.read(root, "./sub//plain", MOST, alone=True) == b"plain"


def test_devices(root: Path) -> None:
    try:
        os.mknod(root / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root can make devices")
    with pytest.raises(OSError, match="regular"):
        beneath.read(root, "zero", MOST)


def growing(monkeypatch: pytest.MonkeyPatch, path: Path, by: int) -> None:
    """Right after its size was asked for, a file grows."""
    fstat, inode = os.fstat, path.stat().st_ino

    def asked(handle: int) -> os.stat_result:
        found = fstat(handle)
        if found.st_ino == inode:
            os.truncate(path, found.st_size + by)
        return found

    monkeypatch.setattr(os, "fstat", asked)


@pytest.mark.parametrize("by", [1, 900 << 30])
def test_a_file_that_grows_while_it_is_read_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    (root / "log").write_bytes(b"x" * MOST)
    assert beneath.read(root, "log", MOST) == b"x" * MOST
    growing(monkeypatch, root / "log", by)
    with pytest.raises(OSError, match="larger"):
        beneath.read(root, "log", MOST)


@pytest.mark.parametrize("by", [1, 4 << 20])
def test_of_a_file_that_grows_what_it_was_is_copied(root: Path, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    large = b"x" * (beneath._PIECE + 10)
    (root / "log").write_bytes(large)
    growing(monkeypatch, root / "log", by)
    beneath.copy(root, "log", root.parent / "copy", 2 * beneath._PIECE)
    assert (root.parent / "copy").read_bytes() == large


def test_a_copy_runs_as_nobody_else(root: Path) -> None:
    (root / "run").write_text("x")
    (root / "run").chmod(0o7755)
    beneath.copy(root, "run", root.parent / "copy", MOST)
    assert stat.S_IMODE((root.parent / "copy").stat().st_mode) == 0o755


def test_what_is_swapped_meanwhile_leads_nowhere(root: Path) -> None:
    """A directory and a file that are now themselves, now links out, now a pipe: whatever is read is ours."""
    stop = threading.Event()
    (root / "a").mkdir()
    (root / "a" / "key").write_text("ours")
    (root / "link").symlink_to("../outside")
    os.mkfifo(root / "pipe")
    (root / "f").write_text("ours")
    (root / "to").symlink_to("../outside/key")

    def swap() -> None:
        while not stop.is_set():
            for one, two in (("a", "link"), ("f", "to"), ("f", "pipe")):
                os.rename(root / one, root / "aside")
                os.rename(root / two, root / one)
                os.rename(root / one, root / two)
                os.rename(root / "aside", root / one)

    swapper = threading.Thread(target=swap)
    swapper.start()
    read, refused = 0, 0
    try:
        while read < 200 or refused < 200:
            for path in ("a/key", "f"):
                try:
                    assert beneath.read(root, path, MOST) == b"ours"
                    read += 1
                except OSError:
                    refused += 1
    finally:
        stop.set()
        swapper.join()


def test_a_walk_is_bounded_and_enters_no_link(root: Path) -> None:
    (root / "out").symlink_to("../outside")
    for number in range(400):
        (root / "sub" / f"n{number:03}").touch()
    (root / "z").mkdir()
    (root / "z" / "f").touch()
    (root / "y" / "y" / "y").mkdir(parents=True)
    found = dict(beneath.walk(root, depth=2, most_entries=800, enter=lambda name: name != "skipped"))
    assert len(found["sub"]) == 100 and found["z"] == ["f"] and found[""] == ["out"]
    assert "y/y" in found and "y/y/y" not in found and "out" not in found


def test_removing_and_making_room_follow_no_link(root: Path) -> None:
    (root / "link").symlink_to("../outside")
    (root / "hollow" / "a").mkdir(parents=True)
    assert beneath.remove(root, ["link/key", "sub/plain", "../outside/key"]) == ["sub/plain"]
    beneath.make_room(root, ["link/key", "hollow"])
    assert (root.parent / "outside" / "key").read_text() == "secret" and not (root / "hollow").exists()
    assert beneath.blocked(root, "link/new", new=True) and not beneath.blocked(root, "none/new", new=True)


def test_copying_keeps_links_links(root: Path) -> None:
    (root / "sub" / "key").symlink_to("../../outside/key")
    os.mkfifo(root / "sub" / "pipe")
    (root / "sub" / "deep").mkdir()
    (root / "sub" / "deep" / "run").write_text("x")
    (root / "sub" / "deep" / "run").chmod(0o755)
    target = root.parent / "copy"
    beneath.copy_tree(root, "sub", target, MOST)
    assert sorted(path.name for path in target.rglob("*")) == ["deep", "key", "plain", "run"]
    assert (target / "key").is_symlink() and (target / "deep" / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "plain").stat().st_mtime_ns == (root / "sub" / "plain").stat().st_mtime_ns

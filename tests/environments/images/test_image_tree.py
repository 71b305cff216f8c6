"""The digest of a tree: what it depends on, and what not."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.environments.build import default_cache_dir, guest_program
from etude.environments.images.artefact import write_erofs
from etude.environments.images.mounts import Mounts
from etude.environments.images.tree import MAX_DEPTH, digest_tree
from etude.environments.trees import copy_upper
from etude.errors import SandboxError

NAMES = st.sampled_from(["a", "b", "c", "ä", "-x", "a.b", ".h"])
OWNERS = st.tuples(st.sampled_from([0, 1, 1000, 65_535]), st.sampled_from([0, 50]))
FILES = st.tuples(st.just("file"), st.binary(max_size=40), st.sampled_from([0o600, 0o644, 0o4755]), OWNERS)
LINKS = st.tuples(st.just("link"), st.sampled_from(["a", "/etc/passwd", "../..", "x" * 60]), st.just(0), OWNERS)
TREES = st.recursive(
    st.one_of(FILES, LINKS),
    lambda entry: st.tuples(
        st.just("dir"), st.dictionaries(NAMES, entry, max_size=4), st.sampled_from([0o755, 0o700, 0o1777]), OWNERS
    ),
    max_leaves=8,
)
ROOTS = st.dictionaries(NAMES, TREES, max_size=4)


def make(entries, directory, order=1):
    for name in sorted(entries)[::order]:
        kind, content, mode, owner = entries[name]
        place = directory / name
        if kind == "dir":
            place.mkdir()
            make(content, place, order)
        elif kind == "link":
            place.symlink_to(content)
        else:
            place.write_bytes(content)
        os.chown(place, *owner, follow_symlinks=False)
        if kind != "link":
            place.chmod(mode)


@pytest.fixture
def scratch(tmp_path):
    def new():
        return Path(tempfile.mkdtemp(dir=tmp_path))

    return new


@given(entries=ROOTS)
@settings(max_examples=25)
def test_the_same_tree_has_the_same_digest_and_the_same_erofs_bytes(tmp_path_factory, entries):
    base = tmp_path_factory.mktemp("trees")
    for order in (1, -1):
        root = base / str(order)
        root.mkdir(mode=0o755)
        make(entries, root, order)
        for path in root.rglob("*"):
            os.utime(path, (order + 5, order + 5), follow_symlinks=False)
        write_erofs(root, base / f"{order}.erofs", 30)
    assert digest_tree(base / "1") == digest_tree(base / "-1")
    assert (base / "1.erofs").read_bytes() == (base / "-1.erofs").read_bytes()
    copy_upper(base / "1", base / "copy")
    assert digest_tree(base / "copy") == digest_tree(base / "1")


@given(one=ROOTS, other=ROOTS)
@settings(max_examples=60)
def test_different_trees_have_different_digests(tmp_path_factory, one, other):
    base = tmp_path_factory.mktemp("pair")
    for name, entries in (("one", one), ("other", other)):
        (base / name).mkdir(mode=0o755)
        make(entries, base / name)
    assert (digest_tree(base / "one").digest == digest_tree(base / "other").digest) == (one == other)


def changes():
    yield "content", lambda root: (root / "file").write_text("other")
    yield "length", lambda root: (root / "file").write_text("")
    yield "mode", lambda root: (root / "file").chmod(0o4644)
    yield "owner", lambda root: os.chown(root / "file", 7, 0)
    yield "group", lambda root: os.chown(root / "dir", 0, 7)
    yield "link target", lambda root: ((root / "link").unlink(), (root / "link").symlink_to("elsewhere"))
    yield "name", lambda root: (root / "file").rename(root / "eile")
    yield "moved", lambda root: (root / "file").rename(root / "dir" / "file")
    yield "one file under two names", lambda root: ((root / "twin").unlink(), os.link(root / "file", root / "twin"))
    yield "fifo", lambda root: ((root / "file").unlink(), os.mkfifo(root / "file"))
    yield "device", lambda root: os.mknod(root / "dev", 0o020644, os.makedev(1, 3))
    yield "root's mode", lambda root: root.chmod(0o711)


@pytest.mark.parametrize(("what", "change"), list(changes()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_change_shows(scratch, what, change):
    root = scratch()
    (root / "dir").mkdir()
    (root / "file").write_text("same")
    (root / "twin").write_text("same")
    (root / "link").symlink_to("file")
    before = digest_tree(root).digest
    change(root)
    assert digest_tree(root).digest != before


def test_a_tree_read_from_its_erofs_file_has_its_digest(scratch, rootfs):
    tree, work = scratch() / "tree", scratch()
    shutil.copytree(rootfs, tree, symlinks=True)
    os.link(tree / "etc" / "passwd", tree / "etc" / "shadow")
    os.mknod(tree / "null", 0o020666, os.makedev(1, 3))
    os.mkfifo(tree / "pipe")
    write_erofs(tree, work / "image", 30)
    mounts = Mounts(guest_program(default_cache_dir()), work)
    try:
        seen = mounts.seen(mounts.erofs(work / "image"))
        assert digest_tree(seen) == digest_tree(tree)
        assert not (work / "mount-1" / "bin").exists()  # for everybody else the mount point is empty
    finally:
        mounts.close()


def test_a_tree_too_deep_to_walk_is_refused(scratch):
    place = scratch()
    root = place
    for _ in range(MAX_DEPTH + 2):
        place = place / "d"
        place.mkdir()
    with pytest.raises(SandboxError, match=f"more than {MAX_DEPTH} directories"):
        digest_tree(root)


def test_what_is_no_image_cannot_be_mounted_and_the_error_says_what_to_do(scratch):
    work = scratch()
    (work / "junk").write_bytes(b"\0" * 8192)
    mounts = Mounts(guest_program(default_cache_dir()), work)
    try:
        with pytest.raises(SandboxError, match=r'images\.format = "directory"'):
            mounts.erofs(work / "junk")
        assert list(work.iterdir()) == [work / "junk"]
    finally:
        mounts.close()

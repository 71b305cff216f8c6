"""The image store: identity, names, collection, and writers that are interrupted."""

import fcntl
import json

import pytest

from etude.environments.images.store import Described, ImageStore
from etude.environments.roots import ImagesConfig
from etude.errors import ConfigError, DeadlineExceeded


def test_a_tree_is_kept_once_whatever_is_said_of_it(store, rootfs):
    plain = store.add_directory(rootfs)
    other = store.add_directory(rootfs, Described(env=(("A", "1"),), user="agent:staff", cmd=("sh",)), name="x/y:1")
    assert plain.id != other.id and plain.path == other.path
    assert (other.env, other.user, other.uid, other.gid, other.cmd) == ({"A": "1"}, "agent:staff", 1000, 50, ("sh",))
    assert len(list((store.root / "trees").iterdir())) == 1 and not list((store.root / "new").iterdir())
    assert store.get("x/y:1") == store.get(other.id) == other
    assert store.names() == {"x/y:1": other.id}


def test_the_id_does_not_depend_on_where_or_when(tmp_path, rootfs):
    stores = [ImageStore(ImagesConfig(dir=tmp_path / name)) for name in ("one", "two")]
    images = [store.add_directory(rootfs) for store in stores]
    assert images[0].id == images[1].id
    assert images[0].path.read_bytes() == images[1].path.read_bytes()
    directory = ImageStore(ImagesConfig(dir=tmp_path / "three", format="directory")).add_directory(rootfs)
    assert directory.id == images[0].id and directory.path.is_dir()


def test_another_form_than_asked_for_is_not_taken_in_its_place(tmp_path, rootfs):
    ImageStore(ImagesConfig(dir=tmp_path)).add_directory(rootfs, name="x")
    with pytest.raises(ConfigError, match="not kept in the form 'directory'"):
        ImageStore(ImagesConfig(dir=tmp_path, format="directory")).get("x")


def test_collection_keeps_what_has_a_name(store, rootfs):
    kept = store.add_directory(rootfs, name="kept")
    lost = store.add_directory(rootfs, Described(user="1"))
    (store.root / "new" / "torn").mkdir()
    removed = store.gc()
    assert (removed.images, removed.unfinished) == ([lost.id], 1)
    assert store.images() == [kept] and kept.path.exists()
    store.unname("kept")
    assert store.gc().images == [kept.id]
    assert not list((store.root / "trees").iterdir())
    with pytest.raises(ConfigError, match="not in"):
        store.get("kept")


def test_collection_waits_for_writers_and_names_what_it_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(ImagesConfig, "gc_timeout_s", 0.2)
    store = ImageStore(ImagesConfig(dir=tmp_path))
    with store.writing(), pytest.raises(DeadlineExceeded, match="images being added or built"):
        store.gc()
    with (store.root / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go again


def test_an_unknown_user_is_refused_by_name_and_nothing_is_added(store, rootfs):
    with pytest.raises(ConfigError, match=r"'nobody' is not in the image's /etc/passwd"):
        store.add_directory(rootfs, Described(user="nobody"))
    with pytest.raises(ConfigError, match="0 to 65535"):
        store.add_directory(rootfs, Described(user="70000"))
    assert store.images() == []


def test_a_passwd_that_links_outside_is_read_inside(store, tmp_path):
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tmp_path / "host").write_text("mallory:x:6:6::/:\n")
    (tree / "etc" / "passwd").symlink_to(tmp_path / "host")
    with pytest.raises(ConfigError, match="'mallory'"):
        store.add_directory(tree, Described(user="mallory"))


def test_what_an_image_says_survives_the_disk(store, rootfs):
    described = Described((("A", "x=y"),), "/srv", "", ("a", "b"), ("e",), (("k", "v"),), ("80/tcp",))
    image = store.add_directory(rootfs, described)
    assert store.get(image.id).described == described
    assert json.loads((store.root / "images" / f"{image.id}.json").read_text())["tree"] == image.tree

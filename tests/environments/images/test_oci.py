"""OCI layouts: whole ones are read as their layers say; torn and hostile ones are refused and write nothing outside."""

import contextlib
import gzip
import hashlib
import io
import json
import platform
import tarfile
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.environments.images.archives import extract
from etude.environments.images.confined import Confined
from etude.environments.images.oci import add_oci
from etude.environments.images.store import ImageStore
from etude.environments.roots import ImagesConfig
from etude.errors import ConfigError, SandboxError

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
TYPE = "application/vnd.oci.image.layer.v1.tar"


def entry(name, content=None, kind=tarfile.REGTYPE, link="", uid=0, gid=0, mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.uid, info.gid, info.mode = kind, link, uid, gid, mode
    info.size = len(content or b"")
    return info, content


def directory(name, **options):
    return entry(name, kind=tarfile.DIRTYPE, mode=options.pop("mode", 0o755), **options)


def tarred(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return out.getvalue()


class Layout:
    """Writes a layout to a directory."""

    def __init__(self, root: Path):
        self.root = root
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.manifests = []

    def blob(self, data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        (self.root / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def json(self, value, media_type="application/json"):
        return self.blob(json.dumps(value).encode(), media_type)

    def image(self, *layers, config=None, name=None, architecture=MACHINE, pack=None, diff_ids=None):
        pack = pack or [("", lambda data: data)] * len(layers)
        blobs = [self.blob(how(data), TYPE + suffix) for data, (suffix, how) in zip(layers, pack, strict=True)]
        diff_ids = diff_ids or [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]
        described = {
            "os": "linux",
            "architecture": architecture,
            "config": config or {},
            "rootfs": {"diff_ids": diff_ids},
        }
        manifest = {"schemaVersion": 2, "config": self.json(described), "layers": blobs}
        descriptor = self.json(manifest) | {"platform": {"os": "linux", "architecture": architecture}}
        if name is not None:
            descriptor["annotations"] = {"org.opencontainers.image.ref.name": name}
        self.manifests.append(descriptor)
        return self.index()

    def index(self):
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.manifests}))
        return self.root


@pytest.fixture
def plain(tmp_path):
    return ImageStore(ImagesConfig(dir=tmp_path / "store", format="directory"))


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "layout")


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in root.rglob("*")
    }


def test_layers_over_each_other(plain, layout):
    layers = [
        tarred(directory("a"), entry("a/one", b"1"), entry("a/two", b"2"), directory("b"), entry("b/x", b"x"),
               entry("gone", b"g"), entry("lib", kind=tarfile.SYMTYPE, link="usr/lib"), directory("usr/lib")),
        tarred(entry("a/.wh.one", b""), entry("b/.wh..wh..opq", b""), entry("b/y", b"y"), entry(".wh.gone", b""),
               entry("lib/through", b"t", uid=7, gid=8, mode=0o4755),
               entry("hard", kind=tarfile.LNKTYPE, link="a/two")),
        tarred(entry("b/z", b"z"), entry("b/.wh..wh..opq", b""), entry("usr", b"now a file")),
    ]  # fmt: skip
    pack = [("+gzip", gzip.compress), ("+zstd", zstandard.compress), ("", lambda data: data)]
    image = add_oci(plain, layout.image(*layers[:2], pack=pack[:2]), name="two")
    found = contents(image.path)
    assert found["a/two"] == b"2" and "a/one" not in found and "gone" not in found
    assert "b/x" not in found and found["b/y"] == b"y"
    assert found["usr/lib/through"] == b"t" and found["lib"] is None
    info = (image.path / "usr/lib/through").stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (7, 8, 0o4755)
    assert (image.path / "hard").samefile(image.path / "a" / "two")
    layout.manifests.clear()
    found = contents(add_oci(plain, layout.image(*layers, pack=pack)).path)
    assert found["b/z"] == b"z" and "b/y" not in found  # an opaque mark spares its own layer, wherever it stands in it
    assert found["usr"] == b"now a file" and "usr/lib" not in found


def test_config_and_a_tar_of_the_layout(store, layout, tmp_path):
    config = {
        "Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/w", "User": "5:6", "Cmd": ["c"], "Entrypoint": ["e"],
        "Labels": {"k": "v"}, "ExposedPorts": {"80/tcp": {}},
    }  # fmt: skip
    root = layout.image(tarred(directory("w"), entry("f", b"1")), config=config)
    image = add_oci(store, root, name="from-oci")
    assert (image.env, image.workdir, image.user) == ({"PATH": "/bin", "A": "b=c"}, "/w", "5:6")
    assert (image.uid, image.gid, image.cmd, image.workspace, image.has_workspace) == (5, 6, ("c",), "/w", True)
    assert (image.described.entrypoint, image.described.exposed) == (("e",), ("80/tcp",))
    for suffix, mode in (("tar", "w"), ("tar.gz", "w:gz")):
        packed = tmp_path / f"layout.{suffix}"
        with tarfile.open(packed, mode) as archive:
            archive.add(root, arcname=".")
        assert add_oci(store, packed) == image


def test_the_image_for_this_machine_is_chosen(store, layout):
    layout.image(tarred(entry("other", b"")), architecture="s390x")
    layout.image(tarred(entry("ours", b"1")), name="v1")
    assert add_oci(store, layout.index())
    inner = {"schemaVersion": 2, "manifests": layout.manifests[:]}
    layout.manifests = [layout.json(inner) | {"annotations": {"org.opencontainers.image.ref.name": "multi"}}]
    layout.image(tarred(entry("ours", b"2")), name="v2")
    with pytest.raises(ConfigError, match=r"several images for linux/.*name one as reference, of multi, v2"):
        add_oci(store, layout.root)
    images = [add_oci(store, layout.root, reference=name).tree for name in ("multi", "v2")]
    assert images[0] != images[1]
    with pytest.raises(ConfigError, match=r"no image for .* called 'v3'"):
        add_oci(store, layout.root, reference="v3")


def damage():
    def torn(layout):
        blob = max((layout.root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
        blob.write_bytes(blob.read_bytes()[:-1] + b"\1")

    def missing(layout):
        max((layout.root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size).unlink()

    def wrong_size(layout):
        layout.manifests[0]["size"] += 1
        layout.index()

    def other_algorithm(layout):
        layout.manifests[0]["digest"] = "sha512:" + "0" * 128
        layout.index()

    def climbing(layout):
        layout.manifests[0]["digest"] = "sha256:../../../../etc/passwd"
        layout.index()

    def no_json(layout):
        (layout.root / "index.json").write_text("{")

    def no_index(layout):
        (layout.root / "index.json").unlink()

    yield from [(torn, "torn or changed"), (missing, "not in the layout"), (wrong_size, "torn or changed")]
    yield from [(other_algorithm, "sha256 is read"), (climbing, "sha256 is read"), (no_json, "not JSON")]
    yield no_index, "no index.json"


@pytest.mark.parametrize(("break_it", "said"), list(damage()), ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_not_whole_is_refused(store, layout, break_it, said):
    layout.image(tarred(entry("f", b"x" * 2000)))
    break_it(layout)
    with pytest.raises(ConfigError, match=said):
        add_oci(store, layout.root)
    assert store.images() == [] and list((store.root / "new").iterdir()) == []


def test_a_layer_that_unpacks_to_something_else_is_refused(store, layout):
    layout.image(tarred(entry("f", b"x")), diff_ids=["sha256:" + "0" * 64])
    with pytest.raises(ConfigError, match="other content than it should"):
        add_oci(store, layout.root)
    layout.manifests.clear()
    layout.image(tarred(entry("f", b"x")), pack=[("+gzip", lambda data: gzip.compress(data)[:-20])])
    with pytest.raises(SandboxError, match="not a whole tar"):
        add_oci(store, layout.root)
    layout.manifests.clear()
    with pytest.raises(ConfigError, match=r"a layer of type .*\+lz4"):
        add_oci(store, layout.image(tarred(), pack=[("+lz4", lambda data: data)]))


HOSTILE = {
    "..": [entry("../evil", b"e"), entry("a/../../../evil", b"e")],
    "absolute": [entry("/evil", b"e"), entry("//tmp/evil", b"e")],
    "absolute link": [entry("l", kind=tarfile.SYMTYPE, link="{outside}"), entry("l/evil", b"e")],
    "relative link": [entry("l", kind=tarfile.SYMTYPE, link="../" * 12 + "{outside}"), entry("l/evil", b"e")],
    "link to a file": [entry("l", kind=tarfile.SYMTYPE, link="{outside}/victim"), entry("l", b"e")],
    "chain": [
        entry("a", kind=tarfile.SYMTYPE, link=".."), entry("b", kind=tarfile.SYMTYPE, link="a/a/a/{outside}"),
        directory("b/evil"), entry("b/victim", b"e"),
    ],
    "hard link": [entry("h", kind=tarfile.LNKTYPE, link="{outside}/victim"), entry("h", b"e")],
    "hard link through a link": [
        entry("l", kind=tarfile.SYMTYPE, link="{outside}"), entry("h", kind=tarfile.LNKTYPE, link="l/victim"),
    ],
    "whiteout": [entry("l", kind=tarfile.SYMTYPE, link="{outside}"), entry("l/.wh.victim", b"")],
    "opaque": [entry("l", kind=tarfile.SYMTYPE, link="{outside}"), entry("l/.wh..wh..opq", b"")],
    "whiteout of ..": [entry("a/.wh...", b"")],
    "whiteout of .": [entry("a/.wh..", b"")],
    "overlay mark": [entry("w", kind=tarfile.CHRTYPE)],
    "circle": [entry("l", kind=tarfile.SYMTYPE, link="l"), entry("l/evil", b"e")],
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_layer_writes_and_removes_nothing_outside(tmp_path, attack):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("whole")
    entries = []
    for info, content in HOSTILE[attack]:
        info.linkname = info.linkname.format(outside=outside)
        entries.append((info, content))
    (tmp_path / "tree").mkdir()
    with contextlib.suppress(SandboxError):
        extract(io.BytesIO(tarred(*entries)), Confined(tmp_path / "tree"), layer=True)
    assert (outside / "victim").read_text() == "whole" and (outside / "victim").stat().st_nlink == 1
    assert [path.name for path in outside.iterdir()] == ["victim"]
    for path in (tmp_path / "evil", Path("/evil"), Path("/tmp/evil")):
        assert not path.exists()


NAMES = st.sampled_from(["a", "b", "..", ".", "a/b", "/a", "../x", "a/../b", ".wh.a", ".wh..wh..opq", "b/.wh.b"])
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
LINKS = st.sampled_from(["/", "..", "../..", "a", "b/a", "/tmp", "../../../../tmp", "."])


@given(st.lists(st.tuples(NAMES, KINDS, LINKS), max_size=8))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_archive_reaches_outside(tmp_path, entries):
    base = Path(tempfile.mkdtemp(dir=tmp_path))
    tree = base / "in" / "tree"
    tree.mkdir(parents=True)
    (base / "a").write_text("whole")
    (base / "in" / "b").write_text("whole")
    archive = tarred(
        *(entry(name, b"e" if kind == tarfile.REGTYPE else None, kind, link) for name, kind, link in entries)
    )
    with contextlib.suppress(SandboxError):
        extract(io.BytesIO(archive), Confined(tree), layer=True)
    assert sorted(str(path.relative_to(base)) for path in base.rglob("*") if tree not in path.parents) == [
        "a", "in", "in/b", "in/tree",
    ]  # fmt: skip
    assert (base / "a").stat().st_nlink == 1 and (base / "a").read_text() == "whole"

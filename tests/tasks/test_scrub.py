"""A scrubbed workspace: one commit, no memory, and the answer nowhere in any byte of it."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import py_compile
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from etude.errors import ConfigError
from etude.tasks.leaks import find_leaks
from etude.tasks.scrub import read_tree, scrub, scrub_task

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from hack_suite.scenes import scene_of

GIVEN = {"pkg/core.py": b"def add(left, right):\n    return left - right\n"}
ANSWER = {
    "pkg/core.py": b"def add(left, right):\n    return left + right\n\n\n"
    b"def multiply(left, right):\n    return left * right\n",
    "pkg/extra.py": b"def divide(left, right):\n    return left / right\n",
}


def git(root: Path, *words: str) -> str:
    person = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *person, *words], cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A repository with everything a careless checkout has."""
    root = tmp_path / "source"
    (root / "pkg").mkdir(parents=True)
    git(root, "init", "-q")
    for files in (ANSWER, GIVEN):
        for path, data in files.items():
            (root / path).write_bytes(data)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", "a commit", "--allow-empty")
    (root / "pkg/extra.py").unlink()
    git(root, "branch", "fix", "HEAD~1")
    git(root, "tag", "v1")
    git(root, "remote", "add", "origin", "https://example.com/a.git")
    (root / "pkg.egg-info").mkdir()
    (root / "pkg.egg-info/SOURCES.txt").write_text("pkg/core.py\npkg/extra.py\n")  # an installed package needs its own
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "inside").symlink_to("pkg/core.py")
    (root / "outside").symlink_to("/etc/passwd")
    (root / "loop").symlink_to("loop")
    for path in (
        "pkg/__pycache__/core.cpython-311.pyc", "pkg/core.py.orig", "pkg/core.py~", ".mypy_cache/3.11/pkg.data.json",
        "build/lib/pkg/core.py", "dist/pkg-1.tar.gz", ".pytest_cache/v/x", "sub/.git/HEAD",
        "htmlcov/index.html", "tags",
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(ANSWER["pkg/core.py"])
    return root


def test_a_scrubbed_checkout_has_one_commit_and_no_memory(checkout, tmp_path):
    target = tmp_path / "target"
    before = read_tree(checkout, history=True)
    done = scrub(checkout, target, answer=ANSWER)
    assert read_tree(checkout, history=True) == before  # the source is only read
    assert set(read_tree(target)) == {"pkg/core.py", "run.sh", "pkg.egg-info/SOURCES.txt"}
    assert (target / "run.sh").stat().st_mode & 0o111
    assert (target / "inside").read_bytes() == GIVEN["pkg/core.py"] and not (target / "outside").exists()
    assert (target / "loop").is_symlink()
    assert {".git/", "outside", "pkg/__pycache__/", ".mypy_cache/", "build/lib/", "sub/.git/"} <= set(done.removed)
    assert git(target, "rev-list", "--all", "--reflog", "--count").strip() == "1"
    assert git(target, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert git(target, "reflog") == git(target, "remote") == git(target, "status", "--porcelain") == ""
    assert "dangling" not in git(target, "fsck", "--lost-found")
    assert [(leak.path, leak.why) for leak in done.leaks] == [("pkg.egg-info/SOURCES.txt", "metadata")]
    assert done.commit == git(target, "rev-parse", "HEAD").strip()


def test_what_remembers_goes_whatever_it_is_called(checkout, tmp_path):
    right = ANSWER["pkg/core.py"]
    git(checkout, "bundle", "create", "-q", "notes.dat", "--all")
    git(checkout, "clone", "-q", "--bare", ".", "mirror")
    git(checkout, "gc", "-q")
    [pack] = (checkout / ".git/objects/pack").glob("*.pack")
    py_compile.compile(str(checkout / "pkg/core.py.orig"), cfile=str(checkout / "fast.bin"))
    left = {
        "odd.dat": pack.read_bytes(),
        "index.old": (checkout / ".git/index").read_bytes(),
        "pkg/core_before.py": right,
        "pkg/core.py.save": right,
        "saved.txt": right.decode().encode("utf-16"),
        "fix.patch": b"".join(b"+%s\n" % line for line in right.split(b"\n")),
        "page.html": b"".join(b"<p><span>%s</span></p>\n" % line for line in right.split(b"\n")),
        "try.ipynb": json.dumps({"cells": [{"source": right.decode().splitlines(True)}]}, indent=1).encode(),
        "pkg/core.xz": lzma.compress(right),
        "core.bz2": bz2.compress(right),
        "bundled.zip": archives()["vendor/pkg.whl"],
    }
    for path, data in left.items():
        (checkout / path).write_bytes(data)
    done = scrub(checkout, tmp_path / "target", answer={"pkg/core.py": right})
    assert set(read_tree(tmp_path / "target")) == {"pkg/core.py", "run.sh", "pkg.egg-info/SOURCES.txt"}
    assert {*left, "mirror/", "notes.dat", "fast.bin"} <= set(done.removed) and done.leaks == ()


def test_what_may_be_wanted_is_reported_and_stays(checkout, tmp_path):
    """Code that shares lines with the answer and does more, and a test."""
    body = ANSWER["pkg/core.py"] + b"".join(b"def other_%d():\n    return %d\n" % (n, n) for n in range(9))
    for path in ("pkg/many.py", "tests/test_core.py"):
        (checkout / path).parent.mkdir(exist_ok=True)
        (checkout / path).write_bytes(body)
    done = scrub(checkout, tmp_path / "target", answer={"pkg/core.py": ANSWER["pkg/core.py"]})
    assert [leak.path for leak in done.leaks] == ["pkg/many.py", "tests/test_core.py"]
    assert (tmp_path / "target/pkg/many.py").read_bytes() == body


def test_an_answer_of_short_lines_is_known_by_what_stands_above():
    given, answer = {"a.py": b"def f(x):\n    y = 1\n"}, {"a.py": b"def f(x):\n    y = 2\n"}
    assert find_leaks({**given, "a.txt": answer["a.py"], "b.txt": b"y = 2\n"}, given, answer)[0].path == "a.txt"
    assert not find_leaks({**given, "b.txt": b"y = 2\n"}, given, answer)


def test_the_same_files_give_the_same_commit(checkout, tmp_path):
    one, two = (scrub(checkout, tmp_path / name) for name in ("one", "two"))
    assert one == two


def test_nothing_is_overwritten_or_made_up(checkout, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        scrub(checkout, tmp_path / "there")
    with pytest.raises(ConfigError, match="no such directory"):
        scrub(tmp_path / "nowhere", tmp_path / "target")


def test_of_a_scrubbed_task_no_byte_tells_the_answer():
    scene = scene_of("leaky", 4)
    line = scene.new.encode()
    careless = scene_of("careless", 4).task
    assert sum(line in whole(data) for data in careless.files.values()) >= 3
    task, done = scrub_task(careless)
    assert task.files.keys() == scene.task.files.keys()  # a scene's task is made as a real one is
    assert ".git/HEAD" in task.files and scene.path in task.files and done.leaks == ()
    assert [path for path, data in task.files.items() if line in whole(data)] == []
    assert task.files[scene.path] == scene.task.files[scene.path]


def whole(data: bytes) -> bytes:
    """A file, and what it holds where it is an object of git's."""
    try:
        return data + zlib.decompress(data)
    except zlib.error:
        return data


def archives() -> dict[str, bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/core.py", ANSWER["pkg/core.py"])
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        info = tarfile.TarInfo("pkg/core.py")
        info.size = len(ANSWER["pkg/core.py"])
        for link in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            nowhere = tarfile.TarInfo("pkg/link")
            nowhere.type, nowhere.linkname = link, "nowhere"
            tar.addfile(nowhere)
        tar.addfile(info, io.BytesIO(ANSWER["pkg/core.py"]))
    return {"vendor/pkg.whl": zipped.getvalue(), "old/pkg.tgz": tarred.getvalue(), "old/broken.whl": b"PK\x03\x04no"}


@pytest.mark.parametrize(
    ("path", "data", "why"),
    [
        ("docs/old_core.txt", ANSWER["pkg/core.py"] + ANSWER["pkg/extra.py"], "copy"),
        *((path, data, "archive" if "broken" not in path else None) for path, data in archives().items()),
        ("lib/pkg.dist-info/RECORD", b"pkg/core.py,sha256=x,1\npkg/extra.py,sha256=y,2\n", "metadata"),
        ("stubs/core.pyi", b"def multiply(left: int, right: int) -> int: ...\n", "metadata"),
        (
            "tests/test_core.py",
            b"from pkg.core import multiply\n\n\ndef test_it():\n    assert multiply(2, 3) == 6\n",
            None,
        ),
        ("README.md", b"Adds and will one day multiply.\n", None),
        ("pkg/other.py", b"def subtract(left, right):\n    return left - right\n", None),
    ],
)
def test_what_tells_is_found_and_what_does_not_is_let_be(path, data, why):
    leaks = find_leaks({**GIVEN, path: data}, GIVEN, ANSWER)
    assert [(leak.path, leak.why) for leak in leaks] == ([(path, why)] if why else [])

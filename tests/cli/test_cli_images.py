"""`etude images`: what a user types, from nothing to a built image and back to nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from proofs import one_of_each

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="images need root: their files have owners"),
    pytest.mark.skipif(shutil.which("mkfs.erofs") is None, reason="no mkfs.erofs: apt-get install -y erofs-utils"),
]


def images(*arguments, rc=0):
    command = [sys.executable, "-m", "etude.cli.main", "images", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == rc, done.stderr
    return json.loads(done.stdout) if rc == 0 else done.stderr


def test_build_add_list_and_collect(tmp_path):
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (tmp_path / "Dockerfile").write_text("FROM base\nARG V=0\nENV V=$V\nCOPY Dockerfile /d\n")
    where = ("--dir", tmp_path / "images", "--json")
    base = images("add", tmp_path / "root", "--name", "base", *where)
    built = images("build", tmp_path, "--name", "mine:1", "--arg", "V=7", *where)
    assert (built["steps"], built["cached"]) == (1, 0) and Path(built["path"]).is_file()
    assert images("build", tmp_path, "--arg", "V=7", *where)["cached"] == 1
    listed = images("list", *where)
    assert listed[base["image_id"]]["names"] == ["base"] and listed[built["image_id"]]["names"] == ["mine:1"]
    assert images("gc", *where)["images"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    one_of_each(
        1.2,
        [
            (("add", "/no/such/place"), "/no/such/place: not a directory"),
            (("add", ".", "--package", "git"), "packages: . is no debian:SUITE"),
            (("add", ".", "--reference", "x"), "reference: . is no OCI layout"),
            (("build", "/no/such/place"), "there is no such Dockerfile"),
        ],
        lambda arguments, said: arguments[0],
    ),
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, arguments, said):
    errors = images(*arguments, "--dir", tmp_path / "images", rc=42)
    assert said in errors and len(errors.strip().splitlines()) == 1

"""Many tasks in one bundle: every byte and bit comes back, git alone can read it, and what is no bundle is refused."""

import subprocess
from dataclasses import replace

import pytest
from users_git import commit_leading_out, git, stored

from etude.cli.main import main
from etude.errors import ConfigError
from etude.tasks.harbor import read_task, write_task
from etude.tasks.ladder import ladder_task
from etude.tasks.packed import pack_tasks, unpack_tasks

FIRST = ladder_task(1, "train", 1)
ODD = replace(
    ladder_task(2, "train", 2),
    files={
        ".gitattributes": b"* text=auto eol=lf\n*.py export-ignore\n*.dat filter=evil\n", "dos.txt": b"a\r\nb\r\n",
        ".gitignore": b"*\n", 'odd "name\\\n\xc3\xbc.txt'.encode("latin-1").decode(): b"\0\xff", "a.dat": b"",
        "run.sh": b"#!/bin/sh\n",
    },
    provenance={"executable": ["run.sh"]},
)  # fmt: skip


def write(root, *tasks):
    for task in tasks:
        write_task(task, root / task.id)
    return [root / task.id for task in tasks]


def test_tasks_come_back_to_the_byte(tmp_path):
    directories = write(tmp_path / "in", FIRST, ODD)
    pack_tasks(directories, tmp_path / "two.bundle")
    found = unpack_tasks(tmp_path / "two.bundle", tmp_path / "out")
    assert [path.name for path in found] == sorted(path.name for path in directories)
    assert {read_task(path).id: read_task(path) for path in found} == {FIRST.id: FIRST, ODD.id: ODD}


def test_the_same_files_are_stored_once(tmp_path):
    bulk = {"bulk.bin": bytes(range(256)) * 400 + str(range(9)).encode()}
    many = [replace(ladder_task(1, "train", seed), files=bulk) for seed in range(12)]
    pack_tasks(write(tmp_path, *many), tmp_path / "many.bundle")
    assert (tmp_path / "many.bundle").stat().st_size < 60_000


def test_git_alone_can_read_it(tmp_path):
    pack_tasks(write(tmp_path, FIRST), tmp_path / "one.bundle")
    subprocess.run(
        ["git", "clone", "-q", str(tmp_path / "one.bundle"), str(tmp_path / "clone")], check=True, timeout=30
    )
    assert read_task(tmp_path / "clone" / FIRST.id) == FIRST


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    [directory] = write(tmp_path, FIRST)
    assert main(["tasks", "pack", str(directory), "--out", str(tmp_path / "x.bundle")]) == 0
    assert "1 tasks in" in capsys.readouterr().out
    words = ["tasks", "unpack", str(tmp_path / "x.bundle"), "--out", str(tmp_path / "out")]
    assert main([*words, "--environments", str(tmp_path / "env"), "--json"]) == 0
    assert str(tmp_path / "out" / FIRST.id) in capsys.readouterr().out


def test_what_cannot_be_done_is_said(tmp_path):
    [directory] = write(tmp_path, FIRST)
    bundle = tmp_path / "one.bundle"
    pack_tasks([directory], bundle)
    with pytest.raises(ConfigError, match=r"one\.bundle: exists already"):
        pack_tasks([directory], bundle)
    with pytest.raises(ConfigError, match="name at least one"):
        pack_tasks([], tmp_path / "none.bundle")
    with pytest.raises(ConfigError, match="2 of the task directories are called"):
        pack_tasks([directory, directory], tmp_path / "twice.bundle")
    with pytest.raises(ConfigError, match=r"task\.toml: missing"):
        pack_tasks([tmp_path], tmp_path / "other.bundle")
    unpack_tasks(bundle, tmp_path / "out")
    with pytest.raises(ConfigError, match="exists already"):
        unpack_tasks(bundle, tmp_path / "out")
    bundle.write_bytes(bundle.read_bytes()[:-200])
    with pytest.raises(ConfigError, match="git fetch"):
        unpack_tasks(bundle, tmp_path / "again")
    with pytest.raises(ConfigError, match="no such file"):
        unpack_tasks(tmp_path / "nothing.bundle", tmp_path / "again")


def test_a_bundle_writes_nothing_outside_its_tasks(tmp_path):
    [directory] = write(tmp_path / "in", FIRST)
    pack_tasks([directory], tmp_path / "good.bundle")
    root = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "good.bundle"), str(root))
    commit = commit_leading_out(root, "odd/../../../../outside", b"x")
    git(root, "update-ref", "HEAD", commit)
    git(root, "bundle", "create", "-q", str(tmp_path / "bad.bundle"), "HEAD")
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(ConfigError, match="odd is no task of plain files"):
        unpack_tasks(tmp_path / "bad.bundle", tmp_path / "a" / "b" / "out")
    assert not [*tmp_path.rglob("outside")]


@pytest.mark.parametrize("name", ["x/../../../../outside", "/{}/outside", "..", ".git", "a\nb", "\x1b[2J", "x" * 256])
def test_a_bundle_does_not_say_where_a_task_is_written(tmp_path, name):
    """git takes a tree whose entries are called so from anybody, and the name was joined to --out as it was."""
    [directory] = write(tmp_path / "in", FIRST)
    pack_tasks([directory], tmp_path / "good.bundle")
    root = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "good.bundle"), str(root))
    task = bytes.fromhex(git(root, "rev-parse", f"HEAD:{FIRST.id}").strip())
    entries = (b"40000 " + each.encode() + b"\0" + task for each in (FIRST.id, name.format(tmp_path)))
    tree = stored(root, "tree", b"".join(entries)).hex()
    git(root, "update-ref", "HEAD", git(root, "commit-tree", "-m", "Tasks", tree).strip())
    git(root, "bundle", "create", "-q", str(tmp_path / "bad.bundle"), "HEAD")
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no plain name of a directory; none of it is written"):
        unpack_tasks(tmp_path / "bad.bundle", tmp_path / "a" / "b" / "out")
    assert not [*tmp_path.rglob("outside")] and not [*(tmp_path / "a" / "b").iterdir()]

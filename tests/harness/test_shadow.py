"""Snapshots: everything comes back byte for byte, and nothing of the user's is touched to make it so."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from users_git import git

from etude.harness.shadow import Restored, Shadow
from etude.host import beneath

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Every file and link, with what it is; directories that hold no file are nothing to git."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.fsencode(os.readlink(path)))
        elif path.is_file():
            found[name] = ("executable" if path.stat().st_mode & 0o100 else "file", path.read_bytes())
    return found


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.txt").write_bytes(b"one\r\ntwo\n\xff\0")
    return tmp_path / "w"


@pytest.fixture
def repo(plain: Path) -> Path:
    """A repository in the middle of somebody's work."""
    git(plain, "init", "-q")
    (plain / ".gitignore").write_text("*.log\nbuild/\n")
    (plain / "b.txt").write_text("b\n")
    (plain / "kept.log").write_text("tracked though ignored\n")
    git(plain, "add", "-A", "-f")
    git(plain, "commit", "-qm", "one")
    (plain / "b.txt").write_text("stashed\n")
    git(plain, "stash")
    (plain / "b.txt").write_text("staged\n")
    git(plain, "add", "b.txt")
    (plain / "b.txt").write_text("unstaged\n")
    (plain / "new.txt").write_text("untracked\n")
    (plain / "x.log").write_text("ignored\n")
    (plain / "build").mkdir()
    (plain / "build" / "out").write_text("ignored\n")
    return plain


def shadow(workspace: Path, session: str = "s", **options: Any) -> Shadow:
    return Shadow(workspace, workspace.parent / "home", session, **options)


def without_git(root: Path) -> dict[str, tuple[str, bytes]]:
    return {name: what for name, what in tree(root).items() if not name.startswith(".git/")}


def test_the_users_repository_is_not_touched(repo: Path) -> None:
    one, before, own = shadow(repo), tree(repo), tree(repo / ".git")

    async def scenario() -> Restored:
        first = await one.take("first")
        (repo / "b.txt").write_text("by the agent\n")
        (repo / "new.txt").unlink()
        (repo / "kept.log").write_text("by the agent\n")
        (repo / "deep" / "er").mkdir(parents=True)
        (repo / "deep" / "er" / "c.txt").write_text("c\n")
        (repo / "x.log").write_text("ignored, and changed\n")
        second = await one.take("second")
        assert set(await one.changed(first, second)) == {"b.txt", "new.txt", "kept.log", "deep/er/c.txt"}
        assert "-unstaged\n+by the agent\n" in await one.diff(first, second)
        return await one.restore(first)

    restored = run(scenario())
    assert tree(repo / ".git") == own, "not one byte of it"
    assert tree(repo) == {**before, "x.log": ("file", b"ignored, and changed\n")}
    assert not (repo / "deep").exists() and restored.removed == ("deep/er/c.txt",) and restored.kept == ()
    assert sorted(restored.written) == ["b.txt", "kept.log", "new.txt"]


def test_a_directory_without_git_can_be_restored_too(plain: Path) -> None:
    one, before = shadow(plain), tree(plain)

    async def scenario() -> None:
        first = await one.take("first")
        assert await one.take("again") == first
        (plain / "a.txt").unlink()
        restored = await one.restore(first)
        assert tree(plain) == before
        await one.restore(restored.before)
        assert tree(plain) == {}

    run(scenario())


def test_whatever_was_done_comes_back(plain: Path) -> None:
    seed = random.randrange(10**9)
    random_, one = random.Random(seed), shadow(plain)
    (plain / ".gitignore").write_text("*.log\n")

    async def scenario() -> None:
        moments: list[tuple[str, dict]] = []
        for _ in range(14):
            for _ in range(random_.randrange(1, 6)):
                meddle(plain, random_)
            moments.append((await one.take("moment"), tree(plain)))
        for _ in range(10):
            snapshot, files = random_.choice(moments)
            restored = await one.restore(snapshot)
            assert tree(plain) == files and restored.kept == (), f"seed {seed}"

    run(scenario())


def test_an_empty_directory_gives_way_to_the_file_that_was_there(plain: Path) -> None:
    one = shadow(plain)
    (plain / ".gitignore").write_text("*.log\n")
    (plain / "b").write_text("b\n")

    async def scenario() -> None:
        first, before = await one.take("first"), tree(plain)
        for name in ("a.txt", "b"):
            (plain / name).unlink()
            (plain / name / "deep" / "er").mkdir(parents=True)
        (plain / "b" / "deep" / "x.log").write_text("ignored, so in no snapshot\n")
        assert (await one.restore(first)).kept == ("b",)
        assert (plain / "a.txt").read_bytes() == before["a.txt"][1] and (plain / "b" / "deep" / "er").is_dir()
        shutil.rmtree(plain / "b")
        assert (await one.restore(first)).kept == () and tree(plain) == before

    run(scenario())


def test_a_directory_too_deep_to_look_through_is_left_alone(plain: Path) -> None:
    one = shadow(plain)

    async def scenario() -> None:
        first = await one.take("first")
        (plain / "a.txt").unlink()
        deep = plain / "a.txt" / "/".join("d" * 500)
        deep.mkdir(parents=True)
        assert (await one.restore(first)).kept == ("a.txt",) and deep.is_dir()

    run(scenario())


NAMES = ["a", "b", "ü \n'", "d"]


def meddle(root: Path, random_: random.Random) -> None:
    """One thing that an agent might do: a file becomes a directory, a link, executable, or is gone."""
    path = root.joinpath(*random_.choices(NAMES, k=random_.randrange(1, 4)))
    for parent in reversed(path.parents):
        if parent.is_relative_to(root) and parent != root and (parent.is_symlink() or parent.is_file()):
            parent.unlink()
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    what = random_.randrange(5)
    if what:
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == 1:
            path.symlink_to(random_.choice(["nowhere", ".", "../a"]))
        else:
            path.write_bytes(random_.randbytes(random_.choice([0, 3, 5000])))
            path.chmod(0o755 if what == 2 else 0o644)


def test_content_is_kept_whatever_attributes_say(repo: Path) -> None:
    (repo / ".gitattributes").write_text("* text=auto eol=crlf ident filter=lfs working-tree-encoding=UTF-16\n")
    (repo / "mixed.txt").write_bytes(b"$Id$ one\r\ntwo\n\xfe")
    one, before = shadow(repo), tree(repo)

    async def scenario() -> None:
        first = await one.take("first")
        for name in ("mixed.txt", "a.txt"):
            (repo / name).write_bytes(b"else")
        await one.restore(first)

    run(scenario())
    assert tree(repo) == before


def test_what_is_in_no_snapshot_is_left_alone(repo: Path) -> None:
    one = shadow(repo)

    async def scenario() -> Restored:
        (repo / "data").write_text("a file\n")
        first = await one.take("first")
        (repo / "data").unlink()
        (repo / "data").mkdir()
        (repo / "data" / "big.log").write_text("an ignored file in its place\n")
        (repo / ".gitignore").write_text("*.log\nbuild/\nnew.txt\n")
        second = await one.take("second")
        (repo / "new.txt").write_text("ignored by now, and changed\n")
        restored = await one.restore(first)
        assert await one.changed(second, restored.before) == []
        return restored

    restored = run(scenario())
    assert set(restored.kept) == {"data", "new.txt"}
    assert (repo / "data" / "big.log").read_text() == "an ignored file in its place\n"
    assert (repo / "new.txt").read_text() == "ignored by now, and changed\n"


def test_the_users_own_patterns_count(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "git").mkdir(parents=True)
    (tmp_path / "config" / "git" / "ignore").write_text("*.swp\n")
    (repo / ".git" / "info" / "exclude").write_text("private/\n")
    (repo / "private").mkdir()
    one = shadow(repo)

    async def scenario() -> list[str]:
        first = await one.take("first")
        for name in ("a.swp", "private/key", "seen"):
            (repo / name).write_text("x")
        return await one.changed(first, await one.take("second"))

    assert run(scenario()) == ["seen"]


def test_large_files_and_repositories_within_are_left_out(repo: Path) -> None:
    inner = repo / "inner"
    inner.mkdir()
    git(inner, "init", "-q")  # without a commit: git itself refuses to add such a one
    (inner / "f").write_text("1\n")
    (repo / "large.bin").write_bytes(b"1" * 3000)
    one = shadow(repo, max_file_mb=0.002)

    async def scenario() -> None:
        first = await one.take("first")
        (inner / "f").write_text("2\n")
        (repo / "large.bin").write_bytes(b"2" * 3000)
        (repo / "b.txt").write_text("else\n")
        restored = await one.restore(first)
        assert restored.written == ("b.txt",)

    run(scenario())
    assert (inner / "f").read_text() == "2\n" and (repo / "large.bin").read_bytes() == b"2" * 3000


def test_nothing_of_the_workspaces_is_run(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(trap))
    git(repo, "config", "core.hooksPath", str(tmp_path))
    git(repo, "config", "filter.lfs.clean", str(trap))
    (repo / ".gitattributes").write_text("* filter=lfs\n")
    for hook in ("post-checkout", "post-index-change", "pre-commit"):
        (tmp_path / hook).symlink_to(trap)
    one = shadow(repo)

    async def scenario() -> None:
        first = await one.take("first")
        (repo / "b.txt").write_text("else\n")
        await one.restore(first)

    (tmp_path / "sprung").unlink(missing_ok=True)
    run(scenario())
    assert not (tmp_path / "sprung").exists()


def test_a_repository_that_a_command_broke_stops_no_snapshot(repo: Path) -> None:
    one = shadow(repo)

    async def scenario() -> list[str]:
        first = await one.take("first")
        for broken in ("index", "HEAD"):
            (repo / ".git" / broken).unlink()
            (repo / ".git" / broken).symlink_to("/dev/zero")
            (repo / "b.txt").write_text(f"{broken}\n")
            assert "b.txt" in await one.changed(first, await one.take(broken))
        return await one.changed_since(first)

    assert "b.txt" in run(scenario())


def test_removing_follows_no_symlink(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    root = tmp_path / "w"
    root.mkdir()
    (root / "d").symlink_to(tmp_path / "outside")
    (root / "e").mkdir()
    (root / "e" / "f").write_text("x")
    assert beneath.remove(root, ["d/precious", "e/f", "e/gone"]) == ["e/f"]
    assert (tmp_path / "outside" / "precious").exists() and not (root / "e").exists()


def test_sessions_of_one_workspace_do_not_mix(repo: Path) -> None:
    one, two = shadow(repo, "one"), shadow(repo, "two")

    async def scenario() -> None:
        first = await one.take("first")
        assert await two.take("other") != first or True  # the same second makes the same commit
        (repo / "b.txt").write_text("else\n")
        await two.adopt("one")
        await one.forget()
        git_dir = next((repo.parent / "home").iterdir())
        git(git_dir, "--git-dir=.", "gc", "--prune=now", "--quiet")
        await two.restore(first)

    run(scenario())
    assert (repo / "b.txt").read_text() == "unstaged\n"

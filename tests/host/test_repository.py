"""Which repository a directory is believed to lie in, and git's work through a directory of our own beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from users_git import git

from etude.errors import ConfigError
from etude.host.git import GitContext, run_git_now
from etude.host.repository import GitRepository, PrivateGitDir, find
from etude.tasks.mined.history import History


@pytest.fixture
def root(outer: Path) -> Path:
    return made(outer / "root")


def made(root: Path, *options: str) -> Path:
    root.mkdir()
    git(root, "init", "-q", *options)
    (root / "a").write_text(f"{root.name}\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", root.name)
    return root


def asked(found: GitRepository | None, *words: str, given: bytes = b"") -> str:
    assert found is not None
    aside = PrivateGitDir(found)
    ran = run_git_now(*words, at=GitContext(aside.git_dir, found.top, aside.index), given=given)
    assert ran.code == 0, ran.reason
    return ran.output.decode()


def test_plain_linked_sub_and_bare_ones_are_found(root: Path, outer: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    assert find(root / "deep" / "er") == GitRepository(root, root / ".git", root / ".git")
    git(root, "worktree", "add", "-q", "--detach", str(outer / "linked"))
    linked = find(outer / "linked")
    assert linked == GitRepository(outer / "linked", root / ".git" / "worktrees" / "linked", root / ".git")
    (outer / "linked" / "a").write_text("changed\n")
    assert asked(linked, "diff-files", "--name-only") == "a\n"
    made(outer / "part")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(outer / "part"), "part")
    part = find(root / "part")
    assert part is not None and part.top == root / "part" and asked(part, "log", "--format=%s") == "part\n"
    git(outer, "clone", "-q", "--bare", str(root), "bare")
    assert find(outer / "bare") is None, "nobody's workspace is a bare repository: it may be planted"
    assert History(outer / "bare").commits("HEAD", 5)[:1] == []  # its only commit has no parent
    assert find(outer) is None


def test_other_hashes_and_packed_refs(outer: Path) -> None:
    root = made(outer / "other", "--object-format=sha256")
    git(root, "tag", "one")
    git(root, "tag", "two")
    git(root, "pack-refs", "--all")
    head = git(root, "rev-parse", "HEAD")
    assert len(head) == 65 and asked(find(root), "rev-parse", "HEAD") == head
    asked(find(root), "update-ref", "--stdin", given=f"delete refs/tags/one\ncreate refs/etude/x {head}".encode())
    assert git(root, "for-each-ref", "--format=%(refname)") == "refs/etude/x\nrefs/heads/main\nrefs/tags/two\n"
    assert (root / ".git" / "packed-refs").is_file() and not (root / ".git" / "packed-refs").is_symlink()


def test_a_split_index(root: Path) -> None:
    (root / "b").write_text("b\n")
    git(root, "update-index", "--split-index")
    git(root, "update-index", "--add", "b")
    assert list((root / ".git").glob("sharedindex.*"))
    assert asked(find(root), "ls-files") == "a\nb\n"


def away(root: Path, name: str, kept: str) -> Path:
    (root / ".git" / name).rename(root / ".git" / kept)
    return root / ".git" / name


REFUSED: dict[str, Callable[[Path, Path], object]] = {
    "a file that leads to another": lambda root, other: [
        away(root, "", "../git"), (root / ".git").write_text(f"gitdir: {other}/.git\n")
    ],
    "a link to another": lambda root, other: [away(root, "", "../git"), (root / ".git").symlink_to(other / ".git")],
    "refs of another": lambda root, other: away(root, "refs", "r").symlink_to(other / ".git" / "refs"),
    "objects of another": lambda root, other: away(root, "objects", "o").symlink_to(other / ".git" / "objects"),
    "a branch of another": lambda root, other: [
        away(root, "refs/heads/main", "m").symlink_to(other / ".git" / "refs" / "heads" / "main"),
        (root / ".git" / "objects" / "info" / "alternates").write_text(f"{other}/.git/objects\n"),
    ],
    "tags of another": lambda root, other: away(root, "refs/tags", "t").symlink_to(other / ".git" / "refs" / "heads"),
    "refs that would be written elsewhere": lambda root, other: (root / ".git" / "refs" / "etude").symlink_to(other),
    "objects that would be written elsewhere": lambda root, other: [
        (root / ".git" / "objects" / f"{number:02x}").symlink_to(other)
        for number in range(256) if not (root / ".git" / "objects" / f"{number:02x}").exists()
    ],
    "packs of another": lambda root, other: away(root, "objects/pack", "p").symlink_to(other / ".git"),
    "a head that is a pipe": lambda root, other: os.mkfifo(away(root, "HEAD", "h")),
}  # fmt: skip


@pytest.mark.parametrize("how", REFUSED)
def test_no_other_repository_is_lent(root: Path, outer: Path, how: str) -> None:
    """The history of a neighbour's project would go to a model with the first worktree."""
    REFUSED[how](root, made(outer / "private"))
    assert find(root) is None


def test_another_users_repository_is_none(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's files")
    (root / "mine").mkdir()
    os.chown(root / ".git", 12345, 12345)
    assert find(root / "mine") is None
    os.chown(root / "mine", 12345, 12345)
    assert find(root / "mine") is not None, "it is the workspace's owner's"


def test_what_never_ends_is_not_waited_for(root: Path) -> None:
    for name in ("config", "info/exclude"):
        os.mkfifo(away(root, name, f"{name}.kept"))
    away(root, "packed-refs", "p") if (root / ".git" / "packed-refs").exists() else None
    assert asked(find(root), "ls-files") == "a\n"
    away(root, "index", "i").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="whole"):
        asked(find(root), "ls-files")


def test_settings_that_say_how_files_are_stored_are_kept_and_no_others(root: Path) -> None:
    (root / "a").chmod(0o755)
    assert asked(find(root), "diff-files", "--name-only") == "a\n"
    git(root, "config", "core.fileMode", "false")
    git(root, "config", "core.excludesFile", "/dev/zero")
    git(root, "config", "core.worktree", "/")
    assert asked(find(root), "diff-files", "--name-only") == ""
    assert asked(find(root), "config", "--list", "--local").splitlines() == [
        "core.repositoryformatversion=0", "core.bare=false", "core.logallrefupdates=false", "core.filemode=false",
    ]  # fmt: skip


@pytest.mark.parametrize("what", ["missing", "link", "directory", "pipe", "empty", "noise"])
def test_a_worktree_whose_head_says_nothing_is_one_clear_error(tmp_path: Path, what: str) -> None:
    (main := tmp_path / "main").mkdir()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"], ["worktree", "add", "-q", "../w"]):
        git(main, *words)
    head = main / ".git" / "worktrees" / "w" / "HEAD"
    whole = head.read_bytes()
    head.unlink()
    made = {"link": lambda: head.symlink_to("../../HEAD"), "directory": head.mkdir, "pipe": lambda: os.mkfifo(head)}
    made |= {"empty": head.touch, "noise": lambda: head.write_bytes(b"\0nonsense")}
    made.get(what, lambda: None)()
    found = find(tmp_path / "w")
    assert found is not None
    aside = PrivateGitDir(found)
    with pytest.raises(ConfigError, match=f"{head}: .*is the repository whole"):
        _ = aside.git_dir
    subprocess.run(["rm", "-rf", head], check=True)
    head.write_bytes(whole)
    assert run_git_now("rev-parse", "--verify", "HEAD", at=GitContext(git_dir=aside.git_dir)).code == 0


def test_a_history_without_commits_or_without_the_named_one_is_told_by_its_own_path(outer: Path) -> None:
    (outer / "empty").mkdir()
    git(outer / "empty", "init", "-q")
    with pytest.raises(ConfigError, match=f"^{outer}/empty: it has no commits yet"):
        History(outer / "empty").head("HEAD")
    with pytest.raises(ConfigError, match=f"^{outer}/full: no revision 'nope' is in it"):
        History(made(outer / "full")).head("nope")

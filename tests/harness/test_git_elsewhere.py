"""A workspace whose files lead git into another repository is asked about before git prints what that one holds.

Every plant is tried twice: git must print the other's, or the case shows nothing, and the judge must ask first.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from users_git import git

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

PRIVATE = "private code of another"


def said(directory: Path, line: str) -> str:
    return subprocess.run(["bash", "-c", line], cwd=directory, capture_output=True, text=True).stdout


def made(place: Path, text: str) -> Path:
    place.mkdir(parents=True)
    git(place, "init", "-qb", "main")
    (place / "file").write_text(text)
    git(place, "add", "-A")
    git(place, "commit", "-qm", text)
    return place


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made(tmp_path / "other", PRIVATE)
    return made(tmp_path / "project", "one's own")


@pytest.fixture
def others(tmp_path: Path) -> Path:
    return tmp_path / "other" / ".git"


def verdict(project: Path, line: str) -> str:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


PLANTED: dict[str, tuple[Callable[[Path, Path], object], str]] = {}


def plant(line: str) -> Callable[[Callable[[Path, Path], object]], Callable[[Path, Path], object]]:
    def keep(function: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
        PLANTED[function.__name__] = (function, line)
        return function

    return keep


def repository(place: Path) -> Path:
    """The parts of a git directory, with nothing in them."""
    for name in ("objects/info", "refs/heads"):
        (place / name).mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    return place


@plant("git -C sub show HEAD:file")
def a_git_file(project: Path, others: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / ".git").write_text(f"gitdir: {others}\n")


@plant("cd sub && git log -p")
def a_git_file_by_a_relative_path(project: Path, others: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / ".git").write_text("gitdir: ../../other/.git\n")


@plant("cd sub && git log -p")
def a_git_file_whose_blank_counts(project: Path, others: Path) -> None:
    (project / "sub").mkdir()
    repository(project / "sub" / "store")
    (project / "sub" / "store ").symlink_to(others)
    (project / "sub" / ".git").write_text("gitdir: store \n")


@plant("git -C sub grep private HEAD")
def a_git_that_is_a_link(project: Path, others: Path) -> None:
    (project / "sub").mkdir()
    (project / "sub" / ".git").symlink_to(others)


@plant("git -C sub log -p")
def a_common_directory(project: Path, others: Path) -> None:
    own = repository(project / "sub" / ".git")
    (own / "commondir").write_text(f"{others}\n")


@plant("cd store && git show HEAD:file")
def a_bare_repository_among_the_files(project: Path, others: Path) -> None:
    store = repository(project / "store")
    (store / "commondir").write_text(f"{others}\n")


@plant("git cat-file -p $NAME")
def alternate_objects(project: Path, others: Path) -> None:
    (project / ".git/objects/info/alternates").write_text(f"{others}/objects\n")


@plant("git show $NAME")
def alternate_objects_by_a_relative_path(project: Path, others: Path) -> None:
    (project / ".git/objects/info/alternates").write_text("# a comment\n../../../other/.git/objects\n")


@plant("git show $NAME")
def alternate_objects_in_quotes(project: Path, others: Path) -> None:
    (project / ".git/objects/info/alternates").write_text(f'"{others}/objec\\164s"\n')


@plant("git show $NAME")
def alternate_objects_of_alternate_objects(project: Path, others: Path) -> None:
    lent = repository(project / "lent")
    (lent / "objects/info/alternates").write_text(f"{others}/objects\n")
    (project / ".git/objects/info/alternates").write_text(f"{lent}/objects\n")


@plant("git show $NAME")
def alternate_objects_by_a_link(project: Path, others: Path) -> None:
    (project / "lent").symlink_to(others / "objects")
    (project / ".git/objects/info/alternates").write_text(f"{project}/lent\n")


@plant("git show $NAME")
def a_link_in_alternate_objects(project: Path, others: Path) -> None:
    lent = repository(project / "lent") / "objects"
    for each in others.glob("objects/??"):
        (lent / each.name).symlink_to(each)
    (project / ".git/objects/info/alternates").write_text(f"{lent}\n")


@plant("git show $NAME")
def an_index_of_packs_that_names_one_elsewhere(project: Path, others: Path) -> None:
    git(others.parent, "repack", "-adq")
    theirs, packs = others / "objects/pack", project / ".git/objects/pack"
    (pack,) = theirs.glob("*.pack")
    for end in (".pack", ".idx"):
        shutil.copy(pack.with_suffix(end), packs / f"{pack.stem}{end}")
        shutil.copy(pack.with_suffix(end), theirs / f"p{end}")
    git(project, "multi-pack-index", "write")
    for each in packs.glob("pack-*"):
        each.unlink()
    name, index = f"{pack.stem}.idx".encode(), packs / "multi-pack-index"
    elsewhere = b"../../../../other/.git/objects/pack/"
    elsewhere += b"./" * ((len(name) - len(elsewhere) - 5) // 2) + b"p.idx"
    written = index.read_bytes().replace(name, elsewhere)
    index.unlink()
    index.write_bytes(written)


@plant("git show $NAME")
def one_object_that_is_a_link(project: Path, others: Path) -> None:
    for each in others.glob("objects/??"):
        (project / ".git/objects" / each.name).mkdir(exist_ok=True)
        for name in each.iterdir():
            place = project / ".git/objects" / each.name / name.name
            if not place.exists():
                place.symlink_to(name)


@plant("git log -p --all")
def objects_and_refs_that_are_links(project: Path, others: Path) -> None:
    (project / ".git/objects").rename(project / ".git/mine")
    (project / ".git/objects").symlink_to(others / "objects")
    (project / ".git/refs/heads/main").unlink()
    (project / ".git/refs/heads/main").symlink_to(others / "refs/heads/main")


@plant("git reflog")
def a_log_that_is_a_link(project: Path, others: Path) -> None:
    name = said(project, "git rev-parse HEAD").strip()
    (others / "logs/HEAD").write_text(f"{'0' * 40} {name} a <a@b> 1700000000 +0000\t{PRIVATE}\n")
    (project / ".git/logs/HEAD").unlink()
    (project / ".git/logs/HEAD").symlink_to(others / "logs/HEAD")


@plant("git status")
def what_is_underway_that_is_a_link(project: Path, others: Path) -> None:
    (others.parent / "done").write_text(f"pick 1234567 {PRIVATE}\n")
    (project / ".git/rebase-merge").mkdir()
    for name in ("head-name", "onto", "git-rebase-todo", "interactive"):
        (project / ".git/rebase-merge" / name).write_text("\n")
    (project / ".git/rebase-merge/done").symlink_to(others.parent / "done")


@plant("git log -p")
def a_worktree_that_nobody_has_made(project: Path, others: Path) -> None:
    """It says that it is one, and the other repository does not."""
    own = repository(project / "store" / "worktrees" / "x")
    (own / "gitdir").write_text(f"{project}/.git\n")
    (own / "commondir").write_text(f"{others}\n")
    (project / ".git").rename(project / "before")
    (project / ".git").write_text(f"gitdir: {own}\n")


@plant("git -C sub log -p")
def a_submodule_that_is_another_ones(project: Path, others: Path) -> None:
    git(others.parent, "config", "core.worktree", str(others.parent))
    (project / "sub").mkdir()
    (project / "sub" / ".git").write_text(f"gitdir: {others}\n")


@plant("git diff --submodule=log HEAD")
def a_repository_in_the_repository(project: Path, others: Path) -> None:
    git(project, "clone", "-q", str(others.parent), "inner")
    git(project, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(project, "commit", "-qm", "inner")
    subprocess.run(["rm", "-rf", str(project / "inner" / ".git")], check=True)
    (project / "inner" / ".git").write_text(f"gitdir: {others}\n")
    git(others.parent, "commit", "-qm", PRIVATE, "--allow-empty")


@pytest.mark.parametrize("name", PLANTED)
def test_what_another_repository_holds_is_asked_about(project: Path, others: Path, name: str) -> None:
    planted, line = PLANTED[name]
    line = line.replace("$NAME", said(others.parent, "git rev-parse HEAD:file").strip())
    assert verdict(project, line) == "allow" or "sub" in line or "store" in line
    planted(project, others)
    assert PRIVATE in said(project, line), "the plant does not show anything"
    assert verdict(project, line) == "ask"


@pytest.mark.parametrize("leads", ["gitdir: /workspace/store\n", None])
def test_a_path_that_is_there_in_the_sandbox_alone_is_asked_about(project: Path, leads: str | None) -> None:
    (project / "sub").mkdir()
    repository(project / "store")
    if leads:
        (project / "sub/.git").write_text(leads)
    else:
        (project / "sub/.git").symlink_to("/workspace/store")
    assert verdict(project, "git -C sub status") == "ask"


READS = ("git status", "git log -p", "git diff", "git show HEAD:file", "git branch -a")


def test_a_worktree_that_git_has_made_is_not_asked_about(project: Path, tmp_path: Path) -> None:
    git(project, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert {verdict(tmp_path / "tree", line) for line in READS} == {"allow"}
    git(project, "worktree", "add", "-q", "inside")
    assert {verdict(project, line) for line in ("git -C inside log -p", "cd inside && git status", *READS)} == {"allow"}


def test_a_submodule_is_not_asked_about(project: Path, tmp_path: Path) -> None:
    others = str(tmp_path / "other")
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", others, "sub")
    git(project, "commit", "-qm", "sub")
    assert (project / "sub/.git").is_file()
    assert {verdict(project, line) for line in ("git -C sub log -p", "cd sub && git status", *READS)} == {"allow"}
    assert {verdict(project / "sub", line) for line in READS} == {"allow"}, "where it is the workspace itself"


def test_a_repository_that_the_workspace_lies_in_is_not_asked_about(project: Path) -> None:
    (project / "src").mkdir()
    (project / ".git/objects/info/alternates").write_text("../../lent\n")
    (project / "lent").mkdir()
    (project / ".git/refs/heads/other").symlink_to("main")
    git(project, "repack", "-adq")
    git(project, "multi-pack-index", "write")
    (project / ".git/hooks").mkdir(exist_ok=True)
    (project / ".git/hooks/pre-commit").symlink_to("/bin/true")
    assert {verdict(project / "src", line) for line in READS} == {"allow"}

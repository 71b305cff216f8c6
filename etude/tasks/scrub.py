"""Makes a workspace without traces of the answer: a checkout without its history, caches and copies, as one commit.

    source ──copy, without what remembers──► target ──git init, one commit──► no refs, reflog, remotes
                                                    └─find_leaks──► what still tells the answer

Owns `scrub` for directories and `scrub_task` for tasks. The source is only read. What is left out is listed, so that
nothing goes missing in silence. What remembers goes, by its name or by what it is; with the answer at hand, copies of
it go too. What cannot be taken away, since a file may be wanted that also tells, is reported as a leak for whoever
makes the task to decide on. Nothing a repository's config names is run.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.records import Task
from etude.tasks.git import run_git
from etude.tasks.leaks import TESTS, AnswerKey, Leak, find_leaks, text_of

_DATED = {"GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z"}
"""The same files give the same commit, on every machine and day."""
_HISTORY = {".git", ".hg", ".svn", ".bzr", ".jj", "CVS"}
_CACHES = {
    "__pycache__", ".mypy_cache", ".dmypy.json", ".pytype", ".pyre", ".pyright", ".basedpyright", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".tox", ".nox", ".eggs", ".cache", ".coverage", "htmlcov", ".ipynb_checkpoints",
    ".idea", ".vscode", ".history", ".vs", ".gradle", ".terraform", ".parcel-cache", ".turbo", ".next", ".scannerwork",
    ".DS_Store", "Thumbs.db", "tags", "TAGS", ".tags",
}  # fmt: skip
_LEFT = re.compile(r"\.(pyc|pyo|class|orig|rej|swp|swo|bak|dwo|gcda|gcno|prof|lprof)$|~$|^\.#|^core\.\d+$|\.egg-link$")
_BUILT = re.compile(
    r"^build/(lib|bdist|temp|scripts)|^target/(classes|debug|release)$|^dist/[^/]+\.(whl|tar\.gz|zip|egg)$"
)
_MAGIC = (b"# v2 git bundle", b"# v3 git bundle", b"PACK\0\0\0", b"\xfftOc", b"DIRC\0\0\0", b"b0VIM ")
_BYTECODE = re.compile(rb"^.[\x0c-\x0f]\r\n", re.DOTALL)


@dataclass(frozen=True)
class ScrubResult:
    """What was done. `removed` are paths relative to the source, directories with a slash; `leaks` are still there."""

    removed: tuple[str, ...]
    commit: str
    leaks: tuple[Leak, ...]


def scrub(
    source: Path, target: Path, *, given: Mapping[str, bytes] | None = None, answer: Mapping[str, bytes] | None = None
) -> ScrubResult:
    """Copy a checkout to `target`, which must not exist, and make it one commit.

    With an `answer` (path → content of the files it changes) what still tells it is looked for; `given` are those files
    as the task has them, the target's own if it is not given. Raises ConfigError, MissingDependency, DeadlineExceeded.
    """
    if not source.is_dir():
        raise ConfigError(f"{source}: no such directory to scrub")
    if target.exists():
        raise ConfigError(f"{target} is there already; name a directory that is not")
    removed: list[str] = []
    target.mkdir(parents=True)
    _copy(source, target, source, removed)
    leaks: list[Leak] = []
    if answer:
        files = read_tree(target)
        shown = files if given is None else {**files, **given}
        for leak in find_leaks(files, shown, answer):
            if _is_copy(leak, files[leak.path], AnswerKey(shown, answer)):
                (target / leak.path).unlink()
                removed.append(leak.path)
            else:
                leaks.append(leak)
    commit = _one_commit(target)
    return ScrubResult(tuple(sorted(removed)), commit, tuple(leaks))


def scrub_task(task: Task) -> tuple[Task, ScrubResult]:
    """The task with a workspace that remembers nothing, and has git where it had git before.

    Its solution is the answer that is looked for. The same errors as `scrub`.
    """
    with tempfile.TemporaryDirectory(prefix="etude-scrub-") as name:
        source, target = Path(name, "source"), Path(name, "target")
        for path, data in task.files.items():
            file = source / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        done = scrub(source, target, answer=task.solution)
        had_history = any(path.split("/")[0] == ".git" for path in task.files)
        files = read_tree(target, history=had_history)
    return replace(task, files=files), done


def read_tree(root: Path, history: bool = False) -> dict[str, bytes]:
    """The plain files below a directory by relative path; git's own only where asked for."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and (history or ".git" not in path.relative_to(root).parts)
    }


# --- the copy ---------------------------------------------------------------------------------------------------------


def _copy(directory: Path, target: Path, top: Path, removed: list[str]) -> None:
    """Everything that does not remember. Links are kept as links, where they stay inside."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = Path(entry.path)
        inside = path.relative_to(top).as_posix()
        is_dir = entry.is_dir(follow_symlinks=False)
        if _remembers(inside, is_dir) or (is_dir and _is_repository(path)) or _is_memory(entry):
            removed.append(f"{inside}/" if is_dir else inside)
        elif entry.is_symlink():
            real = Path(os.path.realpath(path))  # of a link to itself `Path.resolve` makes an error
            if real.is_relative_to(os.path.realpath(top)) and not os.path.isabs(os.readlink(path)):
                (target / entry.name).symlink_to(os.readlink(path))
            else:
                removed.append(inside)
        elif is_dir:
            (target / entry.name).mkdir()
            _copy(path, target / entry.name, top, removed)
        elif entry.is_file(follow_symlinks=False):
            shutil.copy(path, target / entry.name)  # with its mode; its times would tell when it was written
        else:
            removed.append(inside)


def _remembers(path: str, is_dir: bool) -> bool:
    name = path.rpartition("/")[2]
    if name in _HISTORY or name in _CACHES:
        return True
    return _BUILT.search(path) is not None or (not is_dir and _LEFT.search(name) is not None)


def _is_repository(path: Path) -> bool:
    """A bare one, whatever it is called."""
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def _is_memory(entry: os.DirEntry[str]) -> bool:
    """Bytecode, git's packs and bundles, and an editor's swap file, by how they begin."""
    if not entry.is_file(follow_symlinks=False):
        return False
    with open(entry.path, "rb") as file:
        head = file.read(16)
    return head.startswith(_MAGIC) or _BYTECODE.match(head) is not None


def _is_copy(leak: Leak, data: bytes, key: AnswerKey) -> bool:
    """Whether a file that tells the answer is nothing else: an archive, a patch or a note that holds it, the whole file
    under another name. Code that only shares lines with it may be wanted, and so may a test."""
    if leak.why == "metadata" or TESTS.search(leak.path):
        return False
    return not leak.path.endswith(".py") or key.similar_to(text_of(data))


# --- the repository ---------------------------------------------------------------------------------------------------


def _one_commit(root: Path) -> str:
    """Make a repository of all that is there; its only ref is the branch it is on."""
    _git(root, "init", "-q", "--template=")
    _git(root, "add", "-A", "-f")
    _git(root, "commit", "-q", "--allow-empty", "--no-verify", "-m", "The project as it is")
    for trace in ("logs", "COMMIT_EDITMSG", "ORIG_HEAD", "FETCH_HEAD"):
        place = root / ".git" / trace
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    commit = _git(root, "rev-parse", "HEAD").strip()
    counted = _git(root, "rev-list", "--all", "--count").strip()
    if counted != "1" or _git(root, "remote").strip() or _git(root, "for-each-ref").count("\n") != 1:
        raise ConfigError(f"{root}: the new repository holds more than its one commit; is git older than 2.28?")
    return commit


def _git(root: Path, *words: str) -> str:
    at = GitContext(root / ".git", None if words[0] == "init" else root, cwd=root)
    return run_git(*words, at=at, env=_DATED).decode("utf-8", "replace")

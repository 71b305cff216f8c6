"""Whether a repository makes git run programs, or read files of its choice, when it is only asked to show something.

Owns `obeyed`, and `may_open` and `outside_of_tree`, which say what git may open. `git status` runs `core.fsmonitor`,
`git diff` runs `diff.external`, text conversions and filters, and all of them a hook when they refresh the index. A
clone brings none of that, but an archive, a submodule or a directory laid out like a bare repository can. The user's
own configuration is not looked at: it is theirs. Runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.host import beneath

_KEY = re.compile(r"^[ \t]*(?:\[([^\]\n]*)\][ \t]*)?(?:([A-Za-z][\w-]*)[ \t]*(?:=[ \t]*(.*))?)?$", re.MULTILINE)
_RUNS = {
    "fsmonitor", "hookspath", "external", "textconv", "command", "clean", "smudge", "process", "program",
    "showsignature", "attributesfile", "excludesfile", "orderfile", "ignorerevsfile", "worktree",
}  # fmt: skip
"""Keys that name a program which reading runs, or a file which it reads."""
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
"""What `git lfs install --local` writes."""
_MOST_SEEN = 50_000
_MOST_READ = 64 << 20
_LINK_IN_INDEX = b"\0\0\xe0\0"
"""The mode of a repository in a repository, as an index writes it."""


def obeyed(directory: Path) -> str:
    """What git would run or read for its repository's sake when asked from here; empty if nothing."""
    git, tree = _repository(directory)
    return next(_found(git, tree), "") if git else ""


def may_open(directory: Path, path: str, lists: bool, untracked: bool = False) -> bool:
    """Whether git may open this path of its worktree: what its index holds, or that of a repository in it; where it
    `lists`, any directory; where it takes what is `untracked`, everything."""
    git, tree = _repository(directory)
    if git is None or not path.startswith(f"{tree}/"):
        return False
    if untracked or (lists and os.path.isdir(path)):
        return True
    innermost = _repository(Path(path).parent)
    return any(_indexed(git, tree, path) for git, tree in {(git, tree), innermost} if git is not None)


def outside_of_tree(directory: Path, compared: Sequence[str]) -> Sequence[str]:
    """What `git diff` compares file by file, though nobody said --no-index: these, where one of them is not in the
    worktree that it is asked from."""
    git, tree = _repository(directory)
    inside = git is not None and git != tree and all(f"{path}/".startswith(f"{tree}/") for path in compared)
    return () if inside else compared


def _indexed(git: Path, tree: Path, path: str) -> bool:
    index = _bytes(git / "index")
    if index is None:
        return False
    packed = index[4:8] == b"\0\0\0\4"  # the names in it are cut short
    name = os.fsencode(os.path.relpath(path, tree))
    return packed or name + b"\0" in index or name + b"/" in index


def _repository(directory: Path) -> tuple[Path | None, Path]:
    """What git takes for the repository from here, and what it takes for its files."""
    for above in (directory, *directory.parents):
        git = above / ".git"
        git = _named(git, b"gitdir:") if git.is_file() else git
        for found in (git, above):
            if _is_repository(found):
                return found, above
    return None, directory


def _is_repository(git: Path) -> bool:
    return (git / "HEAD").is_file() and ((git / "commondir").is_file() or (git / "objects").is_dir())


def _found(git: Path, tree: Path) -> Iterator[str]:
    common = _named(git / "commondir", b"") if (git / "commondir").is_file() else git
    for place in {git, common}:
        yield from _named_in(place / "config", tree)
        yield from _named_in(place / "config.worktree", tree)
        if os.access(place / "hooks" / "post-index-change", os.X_OK):
            yield f"{place / 'hooks' / 'post-index-change'} is run when the index is refreshed"
    index = _bytes(git / "index")
    if index is None:
        yield f"{git / 'index'} cannot be looked at"
    elif _LINK_IN_INDEX in index:
        for inner in _inner(tree):
            yield from _found(_named(inner, b"gitdir:") if inner.is_file() else inner, inner.parent)


def _inner(tree: Path) -> Iterator[Path]:
    """The repositories below a repository's files: asked about itself, git asks them."""
    seen = 0
    for directory, directories, files in os.walk(tree):
        seen += len(directories) + len(files)
        if directory != str(tree) and ".git" in (*directories, *files):
            yield Path(directory, ".git")
        directories[:] = [name for name in directories if name != ".git"] if seen < _MOST_SEEN else []


def _named_in(config: Path, tree: Path) -> Iterator[str]:
    text = _bytes(config)
    if text is None:
        yield f"{config} cannot be looked at"
        return
    section = ""
    for header, key, value in _KEY.findall(text.decode(errors="replace").replace("\\\n", " ")):
        section = header.split(maxsplit=1)[0].lower().split(".")[0] if header.strip() else section
        key, value = key.lower(), value.strip().strip('"')
        if section in ("include", "includeif", "mailmap") and key:
            yield f"{config} has {section}.{key}"
        if key in _RUNS and not _harmless(key, value, config.parent, tree):
            yield f"{config} sets {section}.{key}"


def _harmless(key: str, value: str, git: Path, tree: Path) -> bool:
    if key == "worktree":
        return "\0" not in value and Path(os.path.realpath(git / value)).is_relative_to(os.path.realpath(tree))
    if key == "hookspath" and not value.startswith("~"):  # of hooks, reading runs this one
        return not os.access(tree / value / "post-index-change", os.X_OK)
    if key in ("clean", "smudge", "process") and _LFS.fullmatch(value):
        return True
    return value.lower() in ("", "false", "no", "off", "0") or (key in ("fsmonitor", "command") and value == "true")


def _named(file: Path, prefix: bytes) -> Path:
    """The path a file of git's holds, meant from where it lies."""
    text = (_bytes(file) or b"").partition(b"\0")[0].strip()
    return file.parent / os.fsdecode(text.removeprefix(prefix).strip())


def _bytes(file: Path) -> bytes | None:
    """Empty where there is none; None for what git would read and we do not: a link, a pipe, too much."""
    try:
        return beneath.read(file.parent, file.name, _MOST_READ)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None

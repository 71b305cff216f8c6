"""What a git command that only reads opens, beside what its words name: where it starts, and which secrets it shows.

Owns `starts`, `places`, `named` and `shown`. What git keeps in its objects it shows from there, and a secret that is
tracked and stands as git keeps it is none to git. One that was changed since is: its content is then
nowhere but in the file. That is told by the file's hash and the index, which a git that obeys nothing of the repository
lists (`host.repository.PrivateGitDir`). What may be read is for the judge.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.errors import EtudeError
from etude.harness.permissions.effort import Effort
from etude.harness.permissions.gitconfig import moves_tree, repositories, tops
from etude.harness.permissions.paths import WorkspacePaths, lies_in
from etude.harness.permissions.secret_files import could_be_secret
from etude.harness.permissions.unreadable import LinkedSecrets
from etude.harness.permissions.walks import met
from etude.host import beneath
from etude.host.git import GitContext, run_git_now
from etude.host.repository import GitRepository, PrivateGitDir, find

_DEADLINE_S = 10.0
_MOST_BYTES = 8 << 20
_LINK = "160000"
"""The mode of a repository in a repository, as git lists it."""
_SHORT = {"--stat", "--shortstat", "--numstat", "--name-only", "--name-status", "--summary", "--raw", "--quiet"}
"""With these alone `git diff` and its like print names and numbers."""
_STAGED = {"--cached", "--staged"}
_OF_INDEX = re.compile(r"-[pniwEFPcHhlL]+|--(cached|staged|color|no-color|word-diff|ignore-case|line-number)")
"""What stands beside --cached and takes no word behind it."""


def starts(words: Sequence[str | None], directories: Sequence[str | None], paths: WorkspacePaths) -> list[Path]:
    """The directories of this machine from which git may look for its repository."""
    moved = [after for before, after in itertools.pairwise(words) if before == "-C" and after and "\0" not in after]
    ways = itertools.product(directories, [".", *moved, *itertools.accumulate(moved, posixpath.join)])
    named = {posixpath.join(place or WORKSPACE, way) for place, way in ways}
    return sorted({Path(os.path.realpath(place)) for way in named for place in paths.all_on_host(way)})


def places(words: Sequence[str | None], directories: Sequence[str | None], paths: WorkspacePaths) -> list[str]:
    """Where else a path among git's words may begin: where `-C` leads, and at the top of the repository, from which
    some options, such as the `-S` of `git blame`, take a file wherever git was started."""
    if paths.root is None:
        return []
    own = {os.path.realpath(paths.on_host(place)) for place in directories if place is not None}
    return sorted({str(place) for here in starts(words, directories, paths) for place in (here, *tops(here))} - own)


def named(
    words: Sequence[str | None], names: Sequence[list[str] | None], here: Path, paths: WorkspacePaths
) -> set[str]:
    """Where on this machine lies what `git diff` could be told to compare."""
    told = names[words.index("diff") + 1 :] if "diff" in words else ()
    return {path for found in told for name in found or () for path in paths.all_on_host(name, str(here))}


def shown(
    here: Path, words: Sequence[str | None], paths: WorkspacePaths, linked: LinkedSecrets, effort: Effort
) -> Iterator[str | None]:
    """The tracked files that could be secrets and that a command prints although git does not keep them so; a None
    where there may be more."""
    if _prints(words):
        limits = _limits(words, here, paths)
        for found in _uncommitted(here, words, linked, effort):
            if not limits or found is None or lies_in(found, limits):
                yield found


def _prints(words: Sequence[str | None]) -> bool:
    """Whether a git command that opens what is tracked prints of it more than names."""
    does, rest = _taken_apart(words)
    options = [word for word in rest if word.startswith("-") and word != "--"]
    if does == "status":
        return any(re.match(r"-\w*v|--v", option) for option in options)
    if does in ("diff", "grep") and not _STAGED.isdisjoint(options):
        return not all(option in _SHORT or _OF_INDEX.fullmatch(option) for option in options)
    if does in ("diff-files", "diff-index"):
        return not _SHORT.union(_STAGED).issuperset(options)
    return does == "grep" or (does == "diff" and not (options and _SHORT.issuperset(options)))


def _limits(words: Sequence[str | None], here: Path, paths: WorkspacePaths) -> list[str]:
    """What a command keeps to, by the plain paths behind its `--`; nothing where it could be more."""
    does, rest = _taken_apart(words)
    if "--" not in rest:
        return []
    at = rest.index("--")
    before, told = ("", does, *rest)[at + 1], rest[at + 1 :]
    certain = not before.startswith("-") or before in _SHORT | _STAGED  # and takes no word behind it
    if not certain or not all(re.fullmatch(r"[\w./][\w./@+ -]*", name) for name in told):
        return []
    return [path for name in told for path in paths.all_on_host(name, str(here))]


def _uncommitted(
    here: Path, words: Sequence[str | None], linked: LinkedSecrets, effort: Effort
) -> Iterator[str | None]:
    """Where it cannot be told whether git keeps them so, all that could be secrets."""
    trees = list(repositories(here))
    if not trees and "grep" in words:  # which a user's configuration lets search without a repository
        yield from met(str(here), words, False, linked, effort)
    for git, tree in trees:
        if git == tree:
            continue
        try:
            found = None if moves_tree(git, tree) else find(tree)
            yield from _changed(found, linked) if found is not None else met(str(tree), words, False, linked, effort)
        except (EtudeError, OSError):
            yield from met(str(tree), words, False, linked, effort)


def _changed(found: GitRepository, linked: LinkedSecrets) -> Iterator[str]:
    """In the repositories that lie in it as well, which some options have git go through."""
    if (top := found.top) is None:
        return
    kept: dict[str, set[str]] = {}
    for mode, blob, name in _listed(found, top):
        if mode == _LINK and os.path.lexists(top / name / ".git"):
            if (inner := find(top / name)) is None:
                raise OSError(f"{top / name} cannot be looked at")
            yield from _changed(inner, linked)
        elif could_be_secret(name) or (linked.any and linked.named(str(top / name))):
            kept.setdefault(name, set()).add(blob)
    yield from (str(top / name) for name, blobs in kept.items() if _is_other(top, name, blobs))


def _listed(found: GitRepository, top: Path) -> Iterator[tuple[str, str, str]]:
    """Mode, object and name of all that a repository tracks."""
    aside = PrivateGitDir(found)
    place = GitContext(aside.git_dir, top, aside.index)
    ran = run_git_now("ls-files", "--stage", "-z", at=place, deadline_s=_DEADLINE_S)
    if ran.code:
        raise OSError(ran.reason)
    for line in ran.output.split(b"\0")[:-1]:
        about, _, name = os.fsdecode(line).partition("\t")
        mode, blob, _ = about.split()
        yield mode, blob, name


def _is_other(top: Path, name: str, blobs: set[str]) -> bool:
    """Whether a file holds what none of these objects is. Of a link git shows where it leads."""
    try:
        content = beneath.read(top, name, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return not os.path.islink(top / name)
    whole = b"blob %d\0%b" % (len(content), content)
    return not any(hashlib.new("sha1" if len(blob) == 40 else "sha256", whole).hexdigest() == blob for blob in blobs)


def _taken_apart(words: Sequence[str | None]) -> tuple[str, list[str]]:
    """What a git command is to do, and the words behind it."""
    known, at = [word or "" for word in words], 1
    while at < len(known) and known[at].startswith("-"):
        at += 2 if known[at] == "-C" else 1
    return (known[at] if at < len(known) else ""), known[at + 1 :]

"""Whether a repository makes git run programs, or read files of its choice, when it is only asked to show something.

Owns `obeyed`, `repositories`, and `may_open` and `outside_of_tree`, which say what git may open. `git status` runs
`core.fsmonitor`, `git diff` runs `diff.external`, text conversions and filters, and all of them a hook when they
refresh the index. A clone brings none of that, but an archive, a submodule or a directory laid out like a bare
repository can. The user's own configuration is not looked at: it is theirs. What the repository's says is git's to tell
(`host.git.read_config`).
A key that is not known to be harmless counts as one that runs something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.errors import EtudeError
from etude.harness.permissions.git_places import leads_out
from etude.host import beneath
from etude.host.git import read_config

_PLAIN = re.compile(
    r"(advice|branch|color|column|commit|fetch|gui|i18n|index|init|merge|pack|pull|push|rebase|rerere|status|submodule|"
    r"tag|user|user-interface|versionsort|worktree)\..*|"
    r"core\.(abbrev|autocrlf|bare|bigfilethreshold|checkstat|commentchar|commitgraph|compression|deltabasecachelimit|"
    r"editor|eol|filemode|fscache|ignorecase|ignorestat|logallrefupdates|longpaths|loosecompression|multipackindex|"
    r"packedgit\w*|precomposeunicode|preloadindex|protecthfs|protectntfs|quotepath|repositoryformatversion|safecrlf|"
    r"sharedrepository|sparsecheckout\w*|splitindex|symlinks|trustctime|untrackedcache|warnambiguousrefs|whitespace)|"
    r"extensions\.(compatobjectformat|noop|objectformat|preciousobjects|refstorage|relativeworktrees|worktreeconfig)|"
    r"diff\.(?!external|orderfile)[^.]*|diff\..*\.(binary|cachetextconv|wordregex|x?funcname|algorithm)|"
    r"log\.(?!showsignature)\w+|remote\..*\.(fetch|followremotehead|mirror|prune|prunetags|push|pushurl|skip\w+|tagopt|url)|remote\.pushdefault|"
    r"filter\..*\.required|lfs\.(repositoryformatversion|(.*\.)?(access|locksverify|url)|fetch\w+|\w*transfers)|"
    r"(checkout|feature|format|gc|grep|maintenance|receive|sendemail|showbranch|stash|transfer|uploadpack)\.[^.]*|"
    r"alias\..*|(merge|diff)tool\..*|gpg\.format",
    re.DOTALL,
)
"""Keys by which git runs nothing and reads no file when it is only asked to show something. What is not among them is
asked about, so that a key which git may gain is as well."""
FOREIGN = (
    "absorb", "branchless", "bugtraq", "cinnabar", "commitizen", "cz", "forge", "gerrit", "ghq", "git-p4", "git-town",
    "git-town-branch", "gitbutler", "gitflow", "github", "gitlab", "gitreview", "gk", "hooks", "hub", "jj", "machete",
    "magit", "mob", "oh-my-zsh", "revise", "secrets", "spr", "stgit", "svn", "svn-remote", "tgit",
)  # fmt: skip
"""Sections that other programs keep in a repository's configuration and git never reads. Not among them are those of a
program that git may run for its user's own configuration: `annex`, `delta`, `lfs`."""
_FOREIGN = re.compile(
    rf"({'|'.join(map(re.escape, FOREIGN))})\..*|(remote|branch)\..*\.\w+-[\w-]+|annex\.(uuid|version|backends?)",
    re.DOTALL,
)
"""Their keys. In sections of git's own it is a hyphen that tells: no variable of git's has one in its name."""
_FETCHING = re.compile(
    r"core\.(askpass|gitproxy|sshcommand)|(credential|http|https|protocol|ssh|url)\..*|"
    r"remote\..*\.(partialclonefilter|promisor|proxy|proxyauthmethod|receivepack|uploadpack|vcs)|"
    r"extensions\.partialclone",
    re.DOTALL,
)
"""Keys that are obeyed when git fetches; showing does so only where objects are promised by somebody else."""
_REMOTE = re.compile(r"remote\.(.*)\.(promisor|url)", re.DOTALL)
_PROMISE = re.compile(r"remote\..*\.(partialclonefilter|promisor)|extensions\.partialclone", re.DOTALL)
_ADDRESS = re.compile(r"(https?|ssh)://[^-].*|[\w.-]+@[\w][\w.-]*:.*")
"""What is fetched from by programs of the user's alone: no path, and no `transport::address`."""
_NO = re.compile(r"false|no|off|0|", re.IGNORECASE)
_FILTER = re.compile(r"filter\..*\.(clean|smudge|process)", re.DOTALL)
_LFS = re.compile(r"git-lfs (clean|smudge|filter-process)( --skip)?( -- %f)?")
"""What `git lfs install --local` writes."""
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}")
_MOST_SEEN = 50_000
_MOST_READ = 64 << 20
_LINK_IN_INDEX = b"\0\0\xe0\0"
"""The mode of a repository in a repository, as an index writes it."""


def obeyed(directory: Path, workspace: Path | None) -> str:
    """What git would run or read for its repository's sake when asked from here; empty if nothing."""
    within = [workspace] if workspace else []
    return next((why for git, tree in repositories(directory) for why in _found(git, tree, within)), "")


def may_open(directory: Path, path: str, lists: bool, untracked: bool = False) -> bool:
    """Whether git may open this path of its worktree: what its index holds, or that of a repository in it; where it
    `lists`, any directory; where it takes what is `untracked`, everything."""
    within = [(git, tree) for git, tree in repositories(directory) if path.startswith(f"{tree}/")]
    if within and (untracked or (lists and os.path.isdir(path))):
        return True
    innermost = repositories(Path(path).parent) if within else ()
    return any(_indexed(git, tree, path) for git, tree in {*within, *innermost})


def outside_of_tree(directory: Path, compared: Sequence[str]) -> Sequence[str]:
    """What `git diff` compares file by file, though nobody said --no-index: these, where one of them is not in the
    worktree that it is asked from."""
    trees = [tree if git != tree else None for git, tree in repositories(directory)]
    inside = trees and all(tree and f"{path}/".startswith(f"{tree}/") for path in compared for tree in trees)
    return () if inside else compared


def tops(directory: Path) -> set[Path]:
    """What could be the top of git's worktree from here."""
    return {tree for _, tree in repositories(directory)}


def moves_tree(git: Path, tree: Path) -> bool:
    """Whether a repository says by its config that its files lie elsewhere than around it."""
    own = [git / name for name in ("config", "config.worktree")[git != tree / ".git" :]]
    return any(key == "core.worktree" for file in own for key, _ in read_config(_bytes(file) or b"", tree) or ())


def _indexed(git: Path, tree: Path, path: str) -> bool:
    index = _bytes(git / "index")
    if index is None:
        return False
    packed = index[4:8] == b"\0\0\0\4"  # the names in it are cut short
    name = os.fsencode(os.path.relpath(path, tree))
    return packed or name + b"\0" in index or name + b"/" in index


def repositories(directory: Path) -> Iterator[tuple[Path, Path]]:
    """What git could take for the repository from here, and for its files: the first that it certainly does, and what
    is nearly one on the way there. Where a `.git` leads counts also if nothing is seen there: in the sandbox there may
    be something."""
    for above in (directory, *directory.parents):
        git = above / ".git"
        leads = git.is_symlink() or git.is_file()
        git = _named(git, b"gitdir: ") if git.is_file() else git
        for found in (git, above):
            has = {name for name in ("HEAD", "commondir", "objects") if os.path.lexists(found / name)}
            nearly = "HEAD" in has and len(has) > 1
            if nearly or (leads and found == git):
                yield found, above
            certain = has == {"HEAD", "objects"} and (found / "refs").is_dir()
            if certain and _HEAD.match(_bytes(found / "HEAD") or b""):
                return


def _found(git: Path, tree: Path, within: Sequence[Path]) -> Iterator[str]:
    common = _named(git / "commondir", b"") if (git / "commondir").is_file() else git
    yield from leads_out(git, common, tree, within)
    said = list[tuple[Path, str, str]]()
    for config in (place / name for place in {git, common} for name in ("config", "config.worktree")):
        text = _bytes(config)
        try:
            found = read_config(text, tree) if text is not None else None
        except EtudeError:
            found = None
        if found is None:
            yield f"{config} cannot be looked at"
        said += [(config, key, value) for key, value in found or ()]
    passed = _FETCHING if _safe_to_fetch([(key, value) for _, key, value in said]) else _PLAIN
    for config, key, value in said:
        if not any(keys.fullmatch(key) for keys in (_PLAIN, _FOREIGN, passed)) and not _harmless(
            key, value, config.parent, tree
        ):
            yield f"{config} sets {key}"
    for place in {git, common}:
        if os.access(place / "hooks" / "post-index-change", os.X_OK):
            yield f"{place / 'hooks' / 'post-index-change'} is run when the index is refreshed"
    index = _bytes(git / "index")
    if index is None:
        yield f"{git / 'index'} cannot be looked at"
    elif _LINK_IN_INDEX in index:
        for inner in _inner(tree):
            inside = _named(inner, b"gitdir: ") if inner.is_file() else inner
            yield from _found(inside, inner.parent, [*within, tree, git, common])


def _safe_to_fetch(said: Sequence[tuple[str, str]]) -> bool:
    """Whether nothing is fetched, for no object may be missing; or from plain addresses, with no key for it set."""
    if not any(_PROMISE.fullmatch(key) for key, _ in said):
        return True
    names = {value for key, value in said if key == "extensions.partialclone"}
    addresses: dict[str, list[str]] = {name: [] for name in names}
    for key, value in said:
        if found := _REMOTE.fullmatch(key):
            addresses.setdefault(found[1], []).extend([value] if found[2] == "url" else [])
    plain = all(each and all(map(_ADDRESS.fullmatch, each)) for each in addresses.values())
    return plain and all(_PROMISE.fullmatch(key) for key, _ in said if _FETCHING.fullmatch(key))


def _inner(tree: Path) -> Iterator[Path]:
    """The repositories below a repository's files: asked about itself, git asks them."""
    seen = 0
    for directory, directories, files in os.walk(tree):
        seen += len(directories) + len(files)
        if directory != str(tree) and ".git" in (*directories, *files):
            yield Path(directory, ".git")
        directories[:] = [name for name in directories if name != ".git"] if seen < _MOST_SEEN else []


def _harmless(key: str, value: str, git: Path, tree: Path) -> bool:
    """What a key that is not plain says for all that."""
    if key.startswith("include"):
        return False
    if key == "core.worktree":
        return Path(os.path.realpath(git / value)).is_relative_to(os.path.realpath(tree))
    if key == "core.hookspath" and not value.startswith("~"):  # of hooks, reading runs this one
        return not os.access(tree / value / "post-index-change", os.X_OK)
    if _FILTER.fullmatch(key) and _LFS.fullmatch(value):
        return True
    return (
        not value if key.endswith("file") else bool(_NO.fullmatch(value)) or (key, value) == ("core.fsmonitor", "true")
    )


def _named(file: Path, prefix: bytes) -> Path:
    """The path a file of git's holds, meant from where it is named; git follows a link that it is. Blanks are part of
    it, ends of lines at its end are not."""
    text = (_bytes(Path(os.path.realpath(file))) or b"").rstrip(b"\r\n").partition(b"\0")[0]
    return file.parent / os.fsdecode(text.removeprefix(prefix))


def _bytes(file: Path) -> bytes | None:
    """Empty where there is none; None for what git would read and we do not: a link, a pipe, too much."""
    try:
        return beneath.read(file.parent, file.name, _MOST_READ)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError:
        return None

"""What the user's own programs obey without being asked, so that no command of the product's agent may write it.

The one list of it. The guest agent gets it when a workspace is opened and judges every call by it, whether a thing is
there yet or not (`guest/planted.c` says what the letters mean). Listed is what is obeyed when a user enters a
directory, opens it in an editor, or runs git to look, add and commit. Not listed is code that somebody runs on purpose
(Makefile, package.json, conftest.py, build.rs): it is changed by every task, and is reviewed as code.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from etude.errors import ConfigError

ANYWHERE = (".git", "git~[0-9]", ".hg", ".jj", ".bzr")
"""No such entry is made, moved or replaced: a repository's own config names programs."""
AT_ANY_DEPTH = (
    ".hg/hgrc*", ".hg/sharedpath", ".hg/requires", ".jj/repo/config.toml", ".jj/repo/config-id",
    ".bzr/branch/branch.conf", ".envrc", ".autoenv*", ".rvmrc",
)  # fmt: skip
"""Obeyed in whatever directory a user enters, by version control at the prompt and by what sets environments."""
AT_ROOTS = (
    ".etude",
    # editors, and what they run when a directory is opened
    ".vscode", "*.code-workspace", ".devcontainer", ".devcontainer.json", ".idea", ".fleet", ".zed", ".vs", ".helix",
    ".vimrc", "_vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".gvimrc", ".lvimrc", ".local.vimrc", ".vim",
    ".dir-locals*.el", ".projectile", ".ropeproject", ".ycm_extra_conf.py", ".gdbinit", ".gdbearlyinit", ".lldbinit",
    ".Rprofile", ".ghci",
    # other agents: the programs and servers that they start
    ".claude", ".mcp.json", ".cursor", ".gemini", ".codex", ".windsurf", ".kiro", ".amazonq", ".roo", ".continue",
    ".opencode", "opencode.json", "opencode.jsonc", ".aider*",
    # tools that shells ask at every prompt or command
    ".mise*", "mise.toml", "mise.local.toml", ".config/mise*", ".tool-versions", ".miserc.toml",
    # hooks where a repository's config is used to have them
    ".husky", ".githooks", ".git-hooks",
    # a directory that is, or is linked from, somebody's home
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".xprofile",
    ".xinitrc", ".xsessionrc", ".pam_environment", ".gitconfig", ".config/git", ".config/fish", ".config/nvim",
    ".config/autostart", ".config/systemd", ".ssh", ".gnupg", ".tmux.conf", ".screenrc", ".emacs",
    ".emacs.d",
)  # fmt: skip
"""Obeyed where a directory is one that a user works in: the workspace itself, and whatever holds a `.git`."""
GIT_WRITES = (
    "index", "index.stash.*", "next-index-*", "sharedindex*", "HEAD", "objects", "refs", "logs", "packed-refs*",
    "reftable", "shallow", "rr-cache", "sequencer", "rebase-apply", "rebase-merge", "gc.pid", "gc.log", "info/refs*",
    "lfs/objects", "lfs/tmp", "lfs/incomplete", "lfs/cache",
    # in capitals, the states of a merge, a pick, a bisection, and messages
    "*_HEAD", "*_MSG", "*_EDITMSG", "MERGE_*", "AUTO_MERGE*", "BISECT_*", "EDIT_DESCRIPTION",
)  # fmt: skip
"""In a git directory that is there: what adding, committing, branching, stashing, merging and rebasing write, and with
`.lock` behind it what they write first. Nothing else of it may change, its config and hooks above all."""
GIT_NEVER = ("objects/info/*alternates*",)


def listed_links(workspace: Path, unguarded: Sequence[str] = ()) -> list[str]:
    """The symlinks at the top whose names are listed: where they lead is obeyed as well."""
    listed = [name for name in (*AT_ANY_DEPTH, *AT_ROOTS) if name not in unguarded]
    links = [entry.name for entry in os.scandir(workspace) if entry.is_symlink()]
    return [name for name in links if any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in listed)]


def listed_as(
    workspace: Path, path: str, held: Iterable[str], unguarded: Sequence[str] = (), removed: bool = False
) -> str | None:
    """Why the guard would refuse to have this path below the workspace written, or `removed`: the name of the list
    that it falls under, which `unguarded` gives up; "" where nothing does; None where it is not refused.

    As `guest/planted.c` judges, but for a directory that the write would make a git directory."""
    parts = path.split("/")
    inside = _in_git(workspace, parts)
    if inside is not None and removed:
        return None
    if inside is not None and (not _any(GIT_WRITES, inside) or _any(GIT_NEVER, inside)):
        return ""
    may_be = [name for name in (*AT_ANY_DEPTH, *AT_ROOTS) if name not in unguarded]
    if name := next((name for name in held if _within(glob.escape(name.rstrip("/")), parts)), None):
        return name if name in may_be else ""
    for at, part in enumerate(parts):
        above, rest = workspace.joinpath(*parts[:at]), parts[at:]
        if not removed and _any(ANYWHERE, [part]) and (len(rest) == 1 or not (above / part).exists()):
            return ""
        here = may_be if at == 0 or (above / ".git").exists() else AT_ANY_DEPTH
        if name := next((name for name in here if name in may_be and _within(name, rest)), None):
            return name
    return None


def _in_git(workspace: Path, parts: Sequence[str]) -> list[str] | None:
    """What a path is called within the innermost git directory that it lies in; None outside of any."""
    for at in range(len(parts) - 1, 0, -1):
        directory = workspace.joinpath(*parts[:at])
        has = {name for name in ("HEAD", "commondir", "objects", "refs") if (directory / name).exists()}
        bare = "HEAD" in has and ("commondir" in has or {"objects", "refs"} <= has)
        if bare or _any((".git", "git~[0-9]"), [parts[at - 1]]):
            return [*parts[at:-1], parts[-1].removesuffix(".lock")]
    return None


def _any(patterns: Iterable[str], parts: Sequence[str]) -> bool:
    return any(_within(pattern, parts) for pattern in patterns)


def _within(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path is what a pattern names, or lies below."""
    wanted = pattern.lower().split("/")
    here = [part.lower() for part in parts[: len(wanted)]]
    return len(here) == len(wanted) and all(map(fnmatch.fnmatchcase, here, wanted))


def rules(places: Sequence[Path], held: Iterable[str], unguarded: Sequence[str] = ()) -> bytes:
    """The list as the guest reads it: `places` are the guarded directories, `held` further paths below them.

    `unguarded` are patterns of the list that this workspace's commands may write after all."""
    may_be = (*AT_ANY_DEPTH, *AT_ROOTS)
    unknown = [name for name in unguarded if name not in may_be]
    if unknown:
        raise ConfigError(f"unguarded: {unknown[0]!r} is not listed; {', '.join(may_be)} are")
    kinds: dict[str, Iterable[str]] = {
        "w": map(str, places),
        "n": ANYWHERE,
        "e": (name for name in AT_ANY_DEPTH if name not in unguarded),
        "r": (name for name in AT_ROOTS if name not in unguarded),
        "p": (glob.escape(name.rstrip("/")) for name in held),
        "g": GIT_WRITES,
        "G": GIT_NEVER,
    }
    lines = [f"{kind} {name}" for kind, names in kinds.items() for name in names]
    if broken := [line for line in lines if "\n" in line]:
        raise ConfigError(f"{broken[0][2:]!r} holds a line break, and cannot be guarded; rename it")
    return b"".join(os.fsencode(line) + b"\n" for line in lines)

"""What the user's own programs obey without being asked, so that no command of the product's agent may write it.

The one list of it. The guest agent gets it when a workspace is opened and judges every call by it, whether a thing is
there yet or not (`guest/planted.c` says what the letters mean); `named.py` adds what such files name in turn.

A file is listed when a program obeys it whom nobody pointed to it, and whom nobody asked to run this project's code:
because a user stands in the directory or opens it (a shell's prompt, an editor, an interpreter, a debugger, git or
another agent that is started there), and by a fixed name. Not listed is what a user runs on purpose, by naming it or by
asking a tool to build, test or install the project (Makefile, package.json, conftest.py, build.rs, a linter's plugins,
the jobs of `.github/workflows`): every task changes it, and it is reviewed as code. Nor is text that an agent reads.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from etude.environments.local.named import UNPACKED, ReferencedPaths
from etude.errors import ConfigError

ANYWHERE = (
    ".git", "git~[0-9]", ".hg", ".jj", ".bzr", ".svn", "_darcs", ".sl", ".pijul", ".fslckout", "_FOSSIL_", ".repo",
)  # fmt: skip
"""No such entry is made, moved or replaced: a repository's own config names programs."""
AT_ANY_DEPTH = (
    ".hg/hgrc*", ".hg/sharedpath", ".hg/requires", ".sl/config", ".jj/repo/config.toml", ".jj/repo/config-id",
    ".bzr/branch/branch.conf", "_darcs/prefs", ".fossil-settings", ".repo/repo",
    ".envrc", ".autoenv*", ".rvmrc", ".shadowenv.d", ".direnv/*.rc", ".direnv/*profile*",
)  # fmt: skip
"""Obeyed in whatever directory a user enters, by version control at the prompt and by what sets environments."""
IN_PROJECTS = (
    ".etude",
    # editors, and what they run when a directory is opened
    ".vscode", "*.code-workspace", ".devcontainer", ".devcontainer.json", ".idea", "*.ipr", "*.iws", ".fleet", ".zed",
    ".vs", ".nova", ".theia", ".helix", ".vimrc", "_vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".gvimrc", ".lvimrc",
    ".local.vimrc", ".vim", ".lazy.lua", ".neoconf.json", ".dir-locals*.el", ".projectile", ".ropeproject",
    ".ycm_extra_conf.py", ".luarc.json*", "*.sublime-project", "*.sublime-workspace", ".externalToolBuilders",
    ".ctags", ".ctags.d", "ctags.d",
    # debuggers and interpreters that are started there
    ".gdbinit", ".gdbearlyinit", ".lldbinit", ".pdbrc", ".perldb", ".jdbrc", "jdb.ini", ".byebugrc", ".rdbgrc*",
    ".Rprofile", ".Renviron", ".RData", ".ghci", ".ocamlinit", ".octaverc", ".irbrc", "_irbrc", ".pryrc", ".iex.exs",
    "jupyter_*config.*", "ipython_*config.*",
    # other agents: the programs and servers that they start
    ".claude", ".mcp.json", ".cursor", ".gemini", ".codex", ".windsurf", ".kiro", ".amazonq", ".roo", ".continue",
    ".opencode", ".opencode.json*", "opencode.json", "opencode.jsonc", ".aider*", ".amp", ".qwen", ".junie", ".crush*",
    "crush.json", ".augment", ".trae", ".clinerules", ".cline", ".factory", ".kilocode", ".openhands", ".agents",
    ".goose", ".vibe", ".pi", ".github/hooks",
    # tools that shells ask at every prompt, or that read it whatever they are asked, their own version too
    ".mise*", "mise.toml", "mise.local.toml", "mise/config*", ".config/mise*", ".tool-versions", ".miserc.toml",
    ".prototools", "rust-toolchain*", ".npmrc", ".yarnrc", ".yarnrc.yml",
    ".pnpmfile.*", "bunfig.toml", ".mvn/jvm.config", ".lfsconfig",
)  # fmt: skip
"""Obeyed in a directory that a user works in, which is any but those of `UNPACKED`: `cd packages/a && vim` is usual."""
AT_ROOTS = (
    # hooks where a repository's config is used to have them
    ".husky", ".githooks", ".git-hooks",
    # a directory that is somebody's home
    ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
    ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".xprofile",
    ".xinitrc", ".xsessionrc", ".pam_environment", ".gitconfig", ".hgrc", ".config/git", ".config/fish", ".config/nvim",
    ".config/autostart", ".config/systemd", ".ssh", ".gnupg", ".tmux.conf", ".screenrc", ".emacs", ".emacs.d",
    ".psqlrc", ".sqliterc", ".cargo/config*", ".gradle/init*", ".curlrc", ".wgetrc",
)  # fmt: skip
"""Obeyed where a directory is a root: the workspace itself, and whatever holds a `.git`."""
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
NO_PIPES = (".gitignore", ".gitattributes", ".gitmodules", ".mailmap")
"""git reads them wherever they lie, and would wait for ever for who writes a pipe; nor are pipes made in its own."""
MAY_BE = (*AT_ANY_DEPTH, *IN_PROJECTS, *AT_ROOTS)


def listed_as(
    workspace: Path,
    path: str,
    held: Iterable[str],
    named: ReferencedPaths,
    unguarded: Sequence[str] = (),
    removed: bool = False,
) -> str | None:
    """Why the guard would refuse to have this path below the workspace written, or `removed`: the name of the list
    that it falls under, which `unguarded` gives up; "" where nothing does; None where it is not refused.

    As `guest/planted.c` judges, but for what depends on more than a name: a directory that the write would make a git
    directory, a program that shells would find. Who is asked about these is refused by the guard then."""
    parts = path.split("/")
    inside = _in_git(workspace, parts)
    if inside is not None and removed:
        return None
    if inside is not None and (not _any(GIT_WRITES, inside) or _any(GIT_NEVER, inside)):
        return ""
    may_be = [name for name in (*MAY_BE, *named.files) if name not in unguarded]
    wanted = [name for name in (*held, *named.files) if name not in unguarded]
    if name := next((name for name in wanted if _within(glob.escape(name.rstrip("/")), parts)), None):
        return name if name in may_be else ""
    unpacked, worked = False, any(_within(glob.escape(name), parts) for name in named.worked)
    for at, part in enumerate(parts):
        above, rest = workspace.joinpath(*parts[:at]), parts[at:]
        if not removed and _any(ANYWHERE, [part]) and (len(rest) == 1 or not (above / part).exists()):
            return ""
        root = at == 0 or (above / ".git").exists()
        here = (*AT_ANY_DEPTH, *(() if unpacked else IN_PROJECTS), *(AT_ROOTS if root else ()))
        if name := next((name for name in here if name in may_be and _within(name, rest)), None):
            return name
        unpacked = unpacked or (not worked and _any(UNPACKED, [part]))
    return None


def _in_git(workspace: Path, parts: Sequence[str]) -> list[str] | None:
    """What a path is called within the innermost git directory that it lies in; None outside of any."""
    for at in range(len(parts) - 1, 0, -1):
        directory = workspace.joinpath(*parts[:at])
        has = {name for name in ("HEAD", "commondir", "objects", "refs") if (directory / name).exists()}
        bare = "HEAD" in has and ("commondir" in has or {"objects", "refs"} <= has)
        if bare or _any((".git", "git~[0-9]"), [parts[at - 1]]):
            return [*parts[at:-1], re.sub(r"(\.lock)+$", "", parts[-1])]
    return None


def _any(patterns: Iterable[str], parts: Sequence[str]) -> bool:
    return any(_within(pattern, parts) for pattern in patterns)


def _within(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path is what a pattern names, or lies below."""
    wanted = pattern.lower().split("/")
    here = [part.lower() for part in parts[: len(wanted)]]
    return len(here) == len(wanted) and all(map(fnmatch.fnmatchcase, here, wanted))


def rules(places: Sequence[Path], held: Iterable[str], named: ReferencedPaths, unguarded: Sequence[str] = ()) -> bytes:
    """The list as the guest reads it: `places` are the guarded directories, `held` further paths below them.

    `unguarded` are patterns of the list, or what the listed names, that this workspace's commands may write after all.
    """
    may_be = (*MAY_BE, *named.files)
    unknown = [name for name in unguarded if name not in may_be]
    if unknown:
        raise ConfigError(f"unguarded: {unknown[0]!r} is not listed; {', '.join(may_be)} are")
    kinds: dict[str, Iterable[str]] = {
        "w": map(str, places),
        "n": ANYWHERE,
        "e": (name for name in AT_ANY_DEPTH if name not in unguarded),
        "s": (name for name in IN_PROJECTS if name not in unguarded),
        "u": UNPACKED,
        "U": map(glob.escape, named.worked),
        "r": (name for name in AT_ROOTS if name not in unguarded),
        "m": (glob.escape(name.rstrip("/")) for name in held if name not in unguarded),
        "p": (glob.escape(name.rstrip("/")) for name in named.files if name not in unguarded),
        "g": GIT_WRITES,
        "G": GIT_NEVER,
        "d": named.searched,
        "D": named.programs,
        "x": map(glob.escape, named.kept),
        "f": NO_PIPES,
    }
    lines = [f"{kind} {name}" for kind, names in kinds.items() for name in names]
    if broken := [line for line in lines if "\n" in line]:
        raise ConfigError(f"{broken[0][2:]!r} holds a line break, and cannot be guarded; rename it")
    return b"".join(os.fsencode(line) + b"\n" for line in lines)

"""What the files that a user's programs obey name in turn: scripts, configs, directories of programs.

Owns `named_in`, which reads what is there when a workspace is opened: git's config, installed hooks, direnv's and other
control files, and the scripts that these name. It is a reading of words and runs nothing: a path that only a run would
tell is not found, nor what an interpreter imports. Everything is bounded. What it does find is guarded like the file
that names it, whether it is there yet or not.

It also says where shells search for programs below the workspace (an activated virtual environment, `PATH_add bin`): no
program is made there that has the name of one outside.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from etude.environments.local.repository import history_of
from etude.host import beneath
from etude.host.git import listed_config

_NO_FILES = ("branch.", "remote.", "user.", "alias.")
"""Keys of git's that name no file, or one that is obeyed only when somebody asks for it by name."""
_WORD = re.compile(r"[^\s'\"`;&|()<>=,\[\]]+")
_VARIABLE = re.compile(r"^(\$\{?\w+\}?)?/+")
_SCRIPT = re.compile(r".*\.(sh|bash|zsh|fish|py|[cm]?[jt]s|rb|pl|lua|ps1|nix|R|vim|gdb)", re.IGNORECASE)
_RUNS = re.compile(r"python[\d.]*|node|ruby|perl|(ba|z|da|k|fi)?sh|lua|deno|bun|tsx|php|Rscript|run|exec")
_SHELL = ("", ".sh", ".bash", ".zsh")
_READS = {
    ".", "source", "source_env", "source_env_if_exists", "dotenv", "dotenv_if_exists", "--config", "--rcfile", "so",
}  # fmt: skip
"""What stands before a file that is obeyed."""
_SEARCHES = {"PATH_add", "path_add", "PATH"}
_LAYOUTS = {
    "python": ".direnv/python-*/bin", "python3": ".direnv/python-*/bin", "node": "node_modules/.bin",
    "ruby": ".direnv/ruby/bin", "php": "vendor/bin", "perl": ".direnv/perl5/bin",
}  # fmt: skip
"""Directories of programs that `layout` of direnv adds."""
_READ_BY = {
    "pre-commit": (".pre-commit-config.yaml",), "pre_commit": (".pre-commit-config.yaml",),
    "lefthook": tuple(f"{dot}lefthook{local}.{end}" for dot in ("", ".") for local in ("", "-local")
                      for end in ("yml", "yaml", "toml", "json")),
    "overcommit": (".overcommit.yml", ".git-hooks"), "husky": (".husky",),
    "lint-staged": (".lintstagedrc", ".lintstagedrc.json", ".lintstagedrc.yaml", "lint-staged.config.js"),
    "flake": ("flake.nix", "flake.lock"), "nix": ("shell.nix", "default.nix"), "devbox": ("devbox.json",),
}  # fmt: skip
"""Programs that hooks and `use` of direnv run, and what these read by a fixed name."""
_CONTROL = {
    ".envrc", ".mise.toml", "mise.toml", ".mcp.json", ".yarnrc.yml", ".Rprofile", ".exrc", ".vimrc", ".nvimrc",
    ".nvim.lua", ".gdbinit", ".lldbinit", ".claude/settings.json", ".claude/settings.local.json", ".cursor/mcp.json",
    ".cursor/hooks.json", ".gemini/settings.json", ".codex/config.toml", ".vscode/mcp.json", "opencode.json",
}  # fmt: skip
_UNDERWAY = ("rebase-merge", "rebase-apply", "sequencer")
_PASSED = {".git", "node_modules", "site-packages", "__pycache__", ".venv", "venv", "target"}
_DEPTH, _ENTRIES, _TEXT_BYTES, _MOST_READ, _MOST_NAMED, _MOST_REPOSITORIES = 8, 40_000, 1 << 16, 200, 1000, 20


@dataclass(frozen=True)
class Named:
    """Paths relative to the workspace, but for `programs`."""

    files: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    """Patterns of directories in which shells look for programs."""
    programs: tuple[str, ...] = ()
    """The directories outside in which they do as well."""
    kept: tuple[str, ...] = ()
    """Programs in `searched` that have the name of one outside already."""


def named_in(workspace: Path) -> Named:
    """Read it all. An unreadable or endless file names nothing."""
    reading = _Reading(workspace)
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        reading.search(place, Path("/") if place.startswith("/") else Path())
    repositories = 0
    for here, names in beneath.walk(workspace, depth=_DEPTH, most_entries=_ENTRIES, enter=lambda n: n not in _PASSED):
        for name in names:
            if name in _CONTROL or f"{os.path.basename(here)}/{name}" in _CONTROL:
                reading.read(workspace / here / name, workspace / here, shell=name == ".envrc")
        if repositories < _MOST_REPOSITORIES and (not here or beneath.lstat(workspace, f"{here}/.git") is not None):
            repositories += 1
            _repository(reading, workspace / here)
    for link in _home_links():
        reading.hold(link)
    return reading.named()


def _repository(reading: _Reading, top: Path) -> None:
    """Its config, hooks, and what is underway in it: the user goes on with that by `git rebase --continue`."""
    history = history_of(top)
    common = history.common if history else top / ".git"
    hooks = [common / "hooks", top / ".husky"]
    for origin, key, value in listed_config(top):
        file = top / origin
        reading.hold(file)
        if key.startswith(("include.", "includeif.")):
            reading.hold(file.parent / os.path.expanduser(value))
        elif key == "core.hookspath":
            hooks.append(top / os.path.expanduser(value))
            reading.hold(hooks[-1])
        elif not key.startswith(_NO_FILES):
            reading.hold_file(top / os.path.expanduser(value))
            reading.text(value, top, shell=True)
    for place in hooks:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name)[:_MOST_READ]:
                if not entry.name.endswith(".sample") and entry.is_file(follow_symlinks=False):
                    reading.read(Path(entry.path), top, shell=True)
    for name in _UNDERWAY:
        if (common / name).exists():
            reading.hold(common / name)
        if history and (history.own / name).exists():
            reading.files |= {name: None, str((history.own / name).relative_to(common)): None}


def _home_links() -> Iterator[Path]:
    """Where the links among the home's dot files lead: a repository of dot files is obeyed wherever it lies."""
    for place, dots in ((Path.home(), True), (Path.home() / ".config", False)):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink() and (entry.name.startswith(".") or not dots):
                    yield Path(entry.path).resolve()


@dataclass
class _Reading:
    workspace: Path
    files: dict[str, None] = field(default_factory=dict)
    searched: dict[str, None] = field(default_factory=dict)
    _read: set[Path] = field(default_factory=set)

    def hold(self, path: Path) -> None:
        """What a program obeys, there or not, and where it leads."""
        with suppress(OSError, ValueError, RuntimeError):
            for each in (Path(os.path.normpath(path)), path.resolve()):
                if each != self.workspace and each.is_relative_to(self.workspace) and len(self.files) < _MOST_NAMED:
                    self.files[str(each.relative_to(self.workspace))] = None

    def hold_file(self, path: Path) -> None:
        with suppress(OSError, ValueError):
            if path.is_file():
                self.hold(path)

    def search(self, place: str, base: Path) -> None:
        """A directory of programs; a relative one of PATH is one wherever somebody stands."""
        path = os.path.normpath(base / place)
        if not os.path.isabs(path):
            self.searched["*" if path == "." else glob.escape(path)] = None
        elif Path(path).is_relative_to(self.workspace) and Path(path) != self.workspace:
            self.searched[glob.escape(str(Path(path).relative_to(self.workspace)))] = None

    def read(self, path: Path, base: Path, *, shell: bool = False) -> None:
        """A file's words, once."""
        if path in self._read or len(self._read) == _MOST_READ:
            return
        self._read.add(path)
        with suppress(OSError):
            text = beneath.read(path.parent, path.name, _TEXT_BYTES).decode("utf-8", "replace")
            self.text(
                "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")), base, shell=shell
            )

    def text(self, text: str, base: Path, *, shell: bool) -> None:
        """A shell's words, or those of a config, where every script that is named is run."""
        before = ""
        for word in _WORD.findall(text):
            for name in _READ_BY.get(word, ()):
                self.hold(base / name)
                self.read(base / name, base)
            if before in _SEARCHES:
                for place in word.split(":"):
                    self.search(_VARIABLE.sub("", place) or ".", base)
            elif before == "layout" and word in _LAYOUTS:
                self.searched[_LAYOUTS[word]] = None
            elif before == "-m":
                self._module(word, base)
            else:
                self._word(word, base, before, shell)
            before = before if word.startswith("-") and word != "-m" and word not in _READS else word

    def _word(self, word: str, base: Path, before: str, shell: bool) -> None:
        run = bool(_RUNS.fullmatch(os.path.basename(before)))
        for place in dict.fromkeys((base, self.workspace)):
            for name in dict.fromkeys((os.path.expanduser(word), _VARIABLE.sub("", word))):
                path = place / name
                with suppress(OSError, ValueError):
                    script = bool(_SCRIPT.fullmatch(name)) and (run or not shell)
                    there = path.is_file() and (before in _READS or script or run or os.access(path, os.X_OK))
                    to_be = before in _READS or (shell and "/" in name.strip("/"))
                    if name and (there or (to_be and not path.exists())):
                        self.hold(path)
                        if there and path.resolve().is_relative_to(self.workspace):
                            self.read(path.resolve(), base, shell=path.suffix in _SHELL)

    def _module(self, word: str, base: Path) -> None:
        """`python -m x` takes it from where it stands."""
        path = base / word.replace(".", "/")
        for each in (path.with_name(f"{path.name}.py"), path / "__init__.py", path / "__main__.py"):
            self.hold(each)

    def named(self) -> Named:
        if not self.searched:
            return Named(tuple(self.files))
        places = [Path(place) for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
        outside = [place for place in places if not place.is_relative_to(self.workspace)]
        kept = [
            str(program.relative_to(self.workspace))
            for pattern in self.searched if pattern != "*"
            for program in self.workspace.glob(f"{pattern}/*")
            if any(os.path.lexists(place / program.name) for place in outside)
        ]  # fmt: skip
        return Named(tuple(self.files), tuple(self.searched), tuple(map(str, outside)), tuple(kept))

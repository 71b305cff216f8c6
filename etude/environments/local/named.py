"""What the files that a user's programs obey name in turn: scripts, configs, directories of programs.

Owns `referenced_paths`, which reads what is there when a workspace is opened: git's config, installed hooks, direnv's
and other control files, and the scripts that these name. It is a reading of words and runs nothing: a path that only a
run would tell is not found, nor what an interpreter imports. Everything is bounded, each source by itself and git's
first, so that no file of a repository uses up what is read of its hooks; a bound that is met is logged. What is found
is guarded like the file that names it, whether it is there yet or not, and with it every link on the way and other
names of it.

It also says where shells search for programs below the workspace (an activated virtual environment, `PATH_add bin`): no
program is made there that has the name of one outside.
"""

from __future__ import annotations

import errno
import glob
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from etude.environments.local.resolving import RUNS, listed_in, names_of, put_in
from etude.host import beneath
from etude.host.git import listed_config
from etude.host.repository import find

log = structlog.get_logger()
_NO_FILES = ("branch.", "remote.", "user.")
"""Keys of git's that name no file."""
_PROGRAMS = (".uploadpack", ".receivepack")
"""Of a remote they do: fetching runs it."""
_WORD = re.compile(r"[^\s'\"`;&|()<>=,\[\]]+|[;&|\n]")
_OPENS = {"", "do", "then", "else", "elif", "if", "while", "until", "!", "{", "time", "command", "exec", "env", "sudo"}
"""What stands before a command's name."""
_VARIABLE = re.compile(r"^(\$\{?\w+\}?)?/+")
_SCRIPT = re.compile(r".*\.(sh|bash|zsh|fish|py|[cm]?[jt]s|rb|pl|lua|ps1|nix|R|vim|gdb)", re.IGNORECASE)
_SHELL = ("", ".sh", ".bash", ".zsh")
_READS = {
    ".", "source", "source_env", "source_env_if_exists", "dotenv", "dotenv_if_exists", "--config", "--rcfile", "so",
}  # fmt: skip
"""What stands before a file that is obeyed."""
_ADDS = {"PATH_add", "path_add"}
_SEARCHES = {*_ADDS, "PATH"}
_HERE = re.compile(r"^\$(PWD\b|\{PWD\})")
_LAYOUTS = {
    "python": ".direnv/python-*/bin", "python3": ".direnv/python-*/bin", "node": "node_modules/.bin",
    "ruby": ".direnv/ruby/bin", "php": "vendor/bin", "perl": ".direnv/perl5/bin",
}  # fmt: skip
_OTHER_LAYOUTS = (".direnv/*/bin", ".venv/bin")
"""Directories of programs that `layout` of direnv adds."""
_READ_BY = {
    "pre-commit": (".pre-commit-config.yaml",), "pre_commit": (".pre-commit-config.yaml",),
    "lefthook": tuple(f"{dot}lefthook{local}.{end}" for dot in ("", ".") for local in ("", "-local")
                      for end in ("yml", "yaml", "toml", "json")),
    "overcommit": (".overcommit.yml", ".git-hooks"), "husky": (".husky",),
    "dotenv": (".env",), "dotenv_if_exists": (".env",),
    "lint-staged": (".lintstagedrc", ".lintstagedrc.json", ".lintstagedrc.yaml", "lint-staged.config.js"),
    "flake": ("flake.nix", "flake.lock"), "nix": ("shell.nix", "default.nix"), "devbox": ("devbox.json",),
}  # fmt: skip
"""Programs that hooks and `use` of direnv run, and what these read by a fixed name."""
_CONTROL = {
    ".envrc", ".mise.toml", "mise.toml", ".mcp.json", ".yarnrc.yml", ".Rprofile", ".exrc", ".vimrc", ".nvimrc",
    ".nvim.lua", ".gdbinit", ".lldbinit", ".claude/settings.json", ".claude/settings.local.json", ".cursor/mcp.json",
    ".cursor/hooks.json", ".gemini/settings.json", ".codex/config.toml", ".vscode/mcp.json", "opencode.json",
}  # fmt: skip
_ON_OPENING = {"tasks.json": b"folderOpen", "devcontainer.json": b"initializeCommand"}
"""What an editor runs when a directory is opened stands beside this; the rest is run by who names it."""
_UNDERWAY = ("rebase-merge", "rebase-apply", "sequencer")
UNPACKED = ("node_modules", "site-packages", "vendor")
"""Where package managers put what is not the project's: such files come with packages, and nobody works there, but
where a link from elsewhere leads. A directory that is moved out of it is copied, name by name."""
_PASSED = {".git", "__pycache__", "node_modules", "site-packages"}
_DEPTH, _ENTRIES, _TEXT_BYTES, _MOST_REPOSITORIES, _MOST_BASES = 100, 200_000, 1 << 16, 20, 16
_MOST_READ, _MOST_NAMED, _MOST_LOOKUPS = 200, 800, 40_000
"""Of one source; the guest takes no more than 4096 rules."""


@dataclass(frozen=True)
class ReferencedPaths:
    """Paths relative to the workspace, but for `programs`."""

    files: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    """Patterns of directories in which shells look for programs: `/bin` is this one, `bin` any that ends so."""
    programs: tuple[str, ...] = ()
    """The directories outside in which they do as well."""
    worked: tuple[str, ...] = ()
    """Among what is unpacked, where links from elsewhere lead."""
    kept: tuple[str, ...] = ()
    """Programs in `searched` that have the name of one outside already."""


def referenced_paths(workspace: Path, listed: Sequence[str] = ()) -> ReferencedPaths:
    """Read it all; where links at or in what is `listed` lead is held too. An unreadable or endless file names nothing,
    and is logged where it is too long."""
    reading = _Scanner(workspace)
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        reading.search(place, Path("/") if place.startswith("/") else Path())
    _repository(reading, workspace)
    seen = reading.walk()
    reading.begin("nested repositories")
    nested = (here for here, _ in seen if here and beneath.lstat(workspace, f"{here}/.git") is not None)
    for here in itertools.islice(nested, _MOST_REPOSITORIES):
        _repository(reading, workspace / here)
    reading.begin("links")
    seen += reading.among_packages(seen)
    for path in (*listed_in(seen, listed), *_home_links()):
        reading.hold(workspace / path)
    reading.begin("control files")
    for here, names in seen:
        for name in names:
            if name in _CONTROL or f"{os.path.basename(here)}/{name}" in _CONTROL:
                reading.hold_others(workspace / here / name)
                reading.read(workspace / here / name, (workspace / here,), shell=name == ".envrc")
            elif (opened := _opened(workspace, here, name)) is not None:
                reading.read(workspace / here / name, (opened, workspace / here))
    reading.begin("links in what is held")
    reading.follow()
    return reading.named()


def _repository(reading: _Scanner, top: Path) -> None:
    """Its config, hooks, and what is underway in it: the user goes on with that by `git rebase --continue`."""
    found = find(top)
    common = found.common if found else top / ".git"
    top = found.top or top if found else top  # the workspace may be a part of it
    hooks = [common / "hooks"]
    for origin, key, value in listed_config(top):
        file = top / origin
        reading.hold(file)
        if key.startswith(("include.", "includeif.")):
            reading.hold(file.parent / os.path.expanduser(value))
        elif key == "core.hookspath":
            hooks.append(top / os.path.expanduser(value))
            reading.hold(hooks[-1])
        elif key.startswith("alias.") and not value.startswith("!"):
            continue  # a command of git's, by another name
        elif not key.startswith(_NO_FILES) or key.endswith(_PROGRAMS):
            value = value.removeprefix("!")
            reading.hold_file(top / os.path.expanduser(value))
            reading.text(value, (top,), shell=True)
    for place in (*hooks, top / ".husky"):
        reading.directory(place, (top,))
    for name in _UNDERWAY:
        if (common / name).exists():
            reading.hold(common / name)
        if found and found.git_dir != common and (found.git_dir / name).exists():
            reading.files |= {name: None, str((found.git_dir / name).relative_to(common)): None}


def _opened(workspace: Path, here: str, name: str) -> Path | None:
    """The directory whose opening runs what this file names."""
    place, parts = workspace / here, here.split("/")
    at = max((at for at, part in enumerate(parts) if part in (".vscode", ".devcontainer")), default=None)
    mark = _ON_OPENING.get(name.removeprefix("."))
    if mark is None or (at is None) != (name == ".devcontainer.json"):
        return None
    with suppress(OSError):
        real = Path(os.path.realpath(place / name))
        if real.is_relative_to(workspace) and mark in beneath.read(real.parent, real.name, _TEXT_BYTES):
            return place if at is None else workspace.joinpath(*parts[:at])
    return None


def _home_links() -> Iterator[Path]:
    """Where the links among the home's dot files lead: a repository of dot files is obeyed wherever it lies."""
    for place, dots in ((Path.home(), True), (Path.home() / ".config", False)):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink() and (entry.name.startswith(".") or not dots):
                    yield Path(os.path.realpath(entry.path))


@dataclass
class _Scanner:
    workspace: Path
    files: dict[str, None] = field(default_factory=dict)
    searched: dict[str, None] = field(default_factory=dict)
    worked: dict[str, None] = field(default_factory=dict)
    _source: str = "git"
    _left: Counter[str] = field(default_factory=Counter)
    _read: set[Path] = field(default_factory=set)
    _others: set[tuple[int, int]] = field(default_factory=set)
    """Files with further names, by device and inode."""

    def __post_init__(self) -> None:
        self.begin(self._source)

    def begin(self, source: str) -> None:
        """What comes from here on has bounds of its own."""
        self._source = source
        self._left = Counter({"files": _MOST_READ, "names": _MOST_NAMED, "look-ups": _MOST_LOOKUPS, "places": 50})

    def _takes(self, kind: str) -> bool:
        self._left[kind] -= 1
        if self._left[kind] == -1:
            log.warning("guard_reads_no_further", workspace=str(self.workspace), source=self._source, most=kind)
        return self._left[kind] >= 0

    def hold(self, path: Path) -> None:
        """What a program obeys, there or not, and where it leads."""
        with suppress(OSError, ValueError, RuntimeError):
            for each in names_of(path):
                if each == self.workspace or not each.is_relative_to(self.workspace):
                    continue
                name = str(each.relative_to(self.workspace))
                if name not in self.files and self._takes("names"):
                    self.files[name] = None
            self.hold_others(path)

    def hold_others(self, path: Path) -> None:
        with suppress(OSError, ValueError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                self._others.add((found.st_dev, found.st_ino))

    def hold_file(self, path: Path) -> None:
        with suppress(OSError, ValueError):
            if path.is_file():
                self.hold(path)

    def directory(self, path: Path, bases: tuple[Path, ...]) -> None:
        """One of which every program is run."""
        if path.is_symlink():
            self.hold(path)
        with suppress(OSError), os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.endswith(".sample") and entry.is_file():
                    self.hold(Path(entry.path))
                    self.read(Path(entry.path), bases, shell=True)

    def walk(self, start: str = "", passed: Collection[str] = _PASSED) -> list[tuple[str, list[str]]]:
        """The directories from `start`, and the names in each that are none."""
        found = list(
            beneath.walk(
                self.workspace, start, depth=_DEPTH, most_entries=_ENTRIES, enter=lambda name: name not in passed
            )
        )
        if sum(2 + len(names) for _, names in found) >= _ENTRIES:
            log.warning(
                "guard_reads_no_further", workspace=str(self.workspace), source=start or "names", most="entries"
            )
        return found

    def among_packages(self, seen: Iterable[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
        """Where links from elsewhere lead among what is unpacked, and what lies there: somebody may work there."""
        found, waiting = list[tuple[str, list[str]]](), list(seen)
        while waiting:
            here, names = waiting.pop()
            if self._unpacked(here):
                continue
            for link in (f"{here}/{name}".lstrip("/") for name in names):
                if not os.path.islink(self.workspace / link) or self._unpacked(link):
                    continue
                for way in names_of(self.workspace / link):
                    place = os.path.relpath(way, self.workspace)
                    if self._unpacked(place) and self._takes("places"):
                        self.worked[place] = None
                        if not way.is_file():  # which commands could link again
                            self.files[link] = None
                        waiting += (new := self.walk(place))
                        found += new
        return found

    def _unpacked(self, path: str) -> bool:
        parts = path.lower().split("/")
        worked = any(f"{path}/".startswith(f"{place}/") for place in self.worked)
        return parts[0] != ".." and not worked and not set(UNPACKED).isdisjoint(parts)

    def follow(self) -> None:
        """Where links in held directories lead, and the other names of held files."""
        for name in list(self.files):
            for here, names in beneath.walk(self.workspace, name, depth=2, most_entries=1000, enter=lambda _: True):
                for path in (self.workspace / here / each for each in names if self._takes("look-ups")):
                    self.hold(path) if path.is_symlink() else self.hold_others(path)
        if not self._others:
            return
        for path in (self.workspace / here / name for here, names in self.walk(passed=()) for name in names):
            with suppress(OSError):
                found = path.lstat()
                if found.st_nlink > 1 and (found.st_dev, found.st_ino) in self._others:
                    self.hold(path)

    def search(self, place: str, base: Path) -> None:
        """A directory of programs: `/bin` is the workspace's own, `bin` any of that name. A relative one of PATH is one
        wherever somebody stands."""
        if not os.path.isabs(base / place):
            path = os.path.normpath(base / place)
            self.searched["*" if path == "." else glob.escape(path)] = None
            return
        with suppress(OSError, ValueError, RuntimeError):
            for each in names_of(base / place):
                if each.is_relative_to(self.workspace):
                    name = f"/{'' if each == self.workspace else glob.escape(str(each.relative_to(self.workspace)))}"
                    if name not in self.searched and self._takes("places"):
                        self.searched[name] = None

    def add_to_path(self, place: str, command: str, bases: tuple[Path, ...]) -> None:
        """One that a shell's text puts into PATH. direnv makes what it adds absolute; `$(…)` is an empty prefix."""
        here = _HERE.sub(".", place)
        known = os.path.expandvars(os.path.expanduser(here)) or "."
        if known.startswith(("/", "$")):
            self.search(known, Path("/"))
            if rest := _VARIABLE.sub("", known):
                self.search(rest, Path())
        elif command in _ADDS or here != place or not place:
            for base in bases:
                self.search(known, base)
        else:
            self.search(known, Path())

    def read(self, path: Path, bases: tuple[Path, ...], *, shell: bool = False) -> None:
        """A file's words, once; of a link those of what lies below the workspace."""
        real = Path(os.path.realpath(path)) if path.is_symlink() else path
        if real in self._read or (real != path and not real.is_relative_to(self.workspace)) or not self._takes("files"):
            return
        self._read.add(real)
        try:
            text = beneath.read(real.parent, real.name, _TEXT_BYTES).decode("utf-8", "replace")
        except OSError as error:
            if error.errno == errno.EFBIG:
                log.warning("guard_reads_no_further", workspace=str(self.workspace), source=str(path), most="bytes")
            return
        text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        self.text(text, tuple(dict.fromkeys((*bases, path.parent))) if shell else bases, shell=shell)

    def text(self, text: str, bases: tuple[Path, ...], *, shell: bool) -> None:
        """A shell's words, or those of a config, where every script that is named is run."""
        before = command = ""
        bases = tuple(dict.fromkeys((*bases, self.workspace)))
        for word in _WORD.findall(put_in(text) if shell else text):
            if word in ";&|\n":
                if before in _ADDS:  # what a command printed: where it stands, most often
                    self.add_to_path("", command, bases)
                    before = ""
                command = ""
                continue
            command = word if command in _OPENS else command
            for name in _READ_BY.get(word, ()):
                self.hold(bases[0] / name)
                self.read(bases[0] / name, bases)
            if before in _SEARCHES or (command in _ADDS and word != command):
                for place in word.split(":"):
                    self.add_to_path(place, command, bases)
            elif before == "layout":
                self.searched |= dict.fromkeys([_LAYOUTS[word]] if word in _LAYOUTS else _OTHER_LAYOUTS)
            elif before == "-m":
                self._module(word, bases[0])
            elif before in ("cd", "pushd") and shell:
                there = (Path(os.path.normpath(base / _VARIABLE.sub("", word))) for base in bases)
                inside = (path for path in there if path.is_relative_to(self.workspace))
                bases = tuple(dict.fromkeys((*bases, *inside)))[:_MOST_BASES]
            else:
                runs = before in _READS or command in (word, "run-parts") or _runs(before)
                self._word(word, bases, before, shell, runs)
            before = before if word.startswith("-") and word != "-m" and word not in _READS else word

    def _word(self, word: str, bases: tuple[Path, ...], before: str, shell: bool, runs: bool) -> None:
        run = _runs(before)
        for place in bases:
            for name in dict.fromkeys((os.path.expanduser(word), _VARIABLE.sub("", word))):
                if not self._takes("look-ups"):
                    return
                above = re.split(r"[^/]*[*?]", name, maxsplit=1)[0]
                path = place / name
                with suppress(OSError, ValueError):
                    if shell and runs and (place / above).is_dir() and self._below(place / above):
                        self.hold(place / above)
                        self.directory(place / above, bases)
                        continue
                    script = bool(_SCRIPT.fullmatch(name)) and (run or not shell)
                    there = path.is_file() and (before in _READS or script or run or os.access(path, os.X_OK))
                    to_be = before in _READS or (shell and "/" in name.strip("/"))
                    if name and (there or (to_be and not path.exists())):
                        self.hold(path)
                        if there and self._below(path):
                            self.read(Path(os.path.realpath(path)), bases[:-1], shell=path.suffix in _SHELL)

    def _below(self, path: Path) -> bool:
        real = Path(os.path.realpath(path))
        return real != self.workspace and real.is_relative_to(self.workspace)

    def _module(self, word: str, base: Path) -> None:
        """`python -m x` takes it from where it stands."""
        path = base / word.replace(".", "/")
        for each in (path.with_name(f"{path.name}.py"), path / "__init__.py", path / "__main__.py"):
            self.hold(each)

    def named(self) -> ReferencedPaths:
        files, worked = tuple(self.files), tuple(self.worked)
        if not self.searched:
            return ReferencedPaths(files, worked=worked)
        places = [Path(place) for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
        outside = [place for place in places if not place.is_relative_to(self.workspace)]
        kept = [
            str(program.relative_to(self.workspace))
            for pattern in self.searched if pattern != "*"
            for program in self.workspace.glob(f"{pattern}/*".lstrip("/"))
            if any(os.path.lexists(place / program.name) for place in outside)
        ]  # fmt: skip
        return ReferencedPaths(files, tuple(self.searched), tuple(map(str, outside)), worked, tuple(kept))


def _runs(before: str) -> bool:
    return bool(RUNS.fullmatch(os.path.basename(before)))

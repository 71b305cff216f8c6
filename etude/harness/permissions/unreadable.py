"""What lies on this machine that no rule lets be read: for the sandbox to leave out, and for the judge to look out for.

A rule on a path stops the tools and the commands that name it. `grep -r`, `cat *` and a program of one's own name
nothing: what is denied outright is better not there. Owns `Denied`, such files as they are now; other names of
the same files are among them, hard links and what a link in the rule leads to. Owns `LinkedSecrets`: the same for what
the built-in rules take for secrets, which is only asked about. What comes into being later is found when somebody looks
again.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from etude.errors import ConfigError
from etude.harness.permissions.rules import PermissionConfig, Rule
from etude.harness.permissions.secret_files import HOME, PACKAGES, could_be_secret

_MAX_FOUND = 500
_MOST_SEEN = 200_000
"""Names looked at for one rule."""


@dataclass(frozen=True)
class Denied:
    """Files and directories that rules speak of, by their real paths."""

    by_path: Mapping[str, Rule]
    complete: bool
    """Whether that is all there is of them on this machine."""

    def holding(self, path: str) -> Rule | None:
        """The rule that speaks of this real path, or of what it lies in."""
        return next((self.by_path[above] for above in (path, *_parents(path)) if above in self.by_path), None)

    def below(self, path: str) -> Iterator[str]:
        """What of it a walk from this real path would meet."""
        top = path.rstrip("/") + "/"
        return (found for found in self.by_path if found == path or found.startswith(top))

    def without(self, hidden: Iterable[str]) -> Denied:
        """What is left of it where these paths are not there."""
        gone = tuple(hidden)
        left = {
            path: rule
            for path, rule in self.by_path.items()
            if not any(above in gone for above in (path, *_parents(path)))
        }
        return Denied(left, self.complete)


@dataclass(frozen=True)
class LinkedSecrets:
    """Which files are secrets by another name. They are looked for once, and only where it matters: a name that is not
    the only one of its file is rare."""

    root: Path | None
    asked_about: Callable[[str], bool]
    """Whether a rule has a path asked about, by that name."""

    def named(self, path: str) -> str:
        """The secret that this path is a hard link to; empty if none."""
        file = _linked(path) if self.root is not None else None
        if file is None:
            return ""
        found, complete = self._found
        return found.get(file, "") or ("" if complete else "a file that there are too many to find")

    @property
    def any(self) -> bool:
        """Whether there could be such at all."""
        return self.root is not None and self._found != ({}, True)

    @cached_property
    def _found(self) -> tuple[dict[tuple[int, int], str], bool]:
        """By device and number, and whether that is all."""
        found: dict[tuple[int, int], str] = {}
        seen = 0
        home = (os.path.expanduser(place.removesuffix("/**")) for place in HOME)
        for top in (str(self.root.resolve()), *home) if self.root is not None else ():
            for directory, directories, files in os.walk(top):
                seen += len(directories) + len(files)
                if seen > _MOST_SEEN:
                    return found, False
                for name in files:
                    path = os.path.join(directory, name)
                    if could_be_secret(path) and (file := _linked(path)) and self.asked_about(path):
                        found.setdefault(file, path)
                directories[:] = [name for name in directories if name not in PACKAGES]
        return found, True


def denied(rules: Iterable[Rule], root: Path) -> Denied:
    """What these rules keep from being read, of what there is now. Only those on paths count."""
    found: dict[str, Rule] = {}
    complete = True
    for rule in rules:
        if rule.names("read_file") and rule.pattern is not None:
            whole = True
            for path in _matching(rule, root.resolve()):
                whole = path is not None and whole
                if path is not None:
                    found.setdefault(os.path.realpath(path), rule)
            complete &= whole and not rule.pattern.startswith("**/")
    found |= _other_names(found, root.resolve())
    return Denied(found, complete)


def unreadable(config: PermissionConfig, root: Path) -> tuple[str, ...]:
    """What `deny = ["read(…)"]` speaks of and exists now: paths below the workspace, and absolute ones."""
    top = str(root.resolve())
    found = denied([Rule(text, "deny") for text in config.deny], root).by_path
    if len(found) > _MAX_FOUND:
        raise ConfigError(f"deny: more than {_MAX_FOUND} files of {root} may not be read; deny their directories")
    return tuple(path.removeprefix(f"{top}/") for path in found if path != top and path != "/")


def _matching(rule: Rule, root: Path) -> Iterator[str | None]:
    """The topmost paths that a rule matches; a None where there may be more than were looked at."""
    pattern = posixpath.expanduser(rule.pattern or "").removesuffix("/**")  # which is what lies in a match
    parts = [part for part in pattern.split("/") if part]
    plain = next((at for at, part in enumerate(parts) if set(part) & set("*?")), len(parts))
    start = os.path.join("/" if pattern.startswith("/") else root, *parts[:plain])
    if not os.path.lexists(start):
        return
    if rule.matches_path(start, _relative(start, root)):
        yield start
        return
    depth = len(parts) - plain if "**" not in "".join(parts[plain:]) else None
    seen = 0
    for directory, directories, files in os.walk(start):
        matched = []
        for name in (*directories, *files):
            path = os.path.join(directory, name)
            if rule.matches_path(path, _relative(path, root)):
                matched.append(name)
                yield path
        seen += len(directories) + len(files)
        if seen > _MOST_SEEN:
            yield None
            return
        deep = depth is not None and directory.count("/") - start.rstrip("/").count("/") + 1 >= depth
        directories[:] = [] if deep else [name for name in directories if name not in matched]


def _relative(path: str, root: Path) -> str | None:
    top = f"{root}/"
    return "." if path == str(root) else path.removeprefix(top) if path.startswith(top) else None


def _other_names(found: Mapping[str, Rule], root: Path) -> dict[str, Rule]:
    """Hard links in the workspace to files that are denied by another name."""
    linked: dict[tuple[int, int], Rule] = {}
    for path, rule in found.items():
        for file in _files(path):
            if (number := _linked(file)) is not None:
                linked[number] = rule
    names = {}
    for file in _files(str(root)) if linked else ():
        if (number := _linked(file)) in linked:
            names[os.path.realpath(file)] = linked[number]
    return names


def _files(path: str) -> Iterator[str]:
    yield path
    for count, (directory, _, files) in enumerate(os.walk(path)):
        if count > _MOST_SEEN // 10:
            return
        yield from (os.path.join(directory, name) for name in files)


def _linked(path: str) -> tuple[int, int] | None:
    """Which file it is, if that is a regular one and has another name."""
    try:
        seen = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (seen.st_dev, seen.st_ino) if stat.S_ISREG(seen.st_mode) and seen.st_nlink > 1 else None


def _parents(path: str) -> Iterator[str]:
    while (above := posixpath.dirname(path)) != path:
        path = above
        yield path

"""Where a path leads: inside the workspace or out of it, symlinks and `..` followed.

Owns `WorkspacePaths`. With the workspace on this machine links are followed as the kernel would; for a workspace in a
sandbox elsewhere only names can be judged, and the sandbox itself keeps writes inside. Between the look and the write a
link could be changed by somebody else: that is the OS sandbox's to prevent.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.harness.permissions.effort import Effort
from etude.harness.permissions.rules import Kind

_SCRATCH = re.compile(r"/tmp(?:/.*)?|/dev/(?:null|tty|std(?:in|out|err)|fd(?:/\d+)?)", re.DOTALL)
"""Outside the workspace, and harmless to write. What lies below a descriptor is what lies in some directory."""
_PRIVATE = ("/tmp", "/run")
"""What a command finds there is its session's own, and none of this machine's."""
_MOST_SEEN = 20_000
"""Names looked at for one pattern."""
_OF_PROCESS, _STANDARD = r"/proc/(?:self|thread-self|\d+)(?:/.*)?", "std(?:in|out|err)"
_BY_PROCESS = re.compile(rf"{_OF_PROCESS}|/dev/fd(?:/.*)?|/dev/{_STANDARD}", re.DOTALL)
_UNSEEN = re.compile(rf"{_OF_PROCESS}|/dev/(?:fd/[^/]+|{_STANDARD})/.*", re.DOTALL)
"""Paths that lead elsewhere for every process; and those of them of which only it can tell what they are."""
_MOST_LINKS = 40
"""That the kernel follows for one path."""


@dataclass(frozen=True)
class Target:
    """A path as the rules see it."""

    path: str
    relative: str | None
    """From the workspace; None outside of it."""
    scratch: bool = False

    def rule(self, kind: Kind) -> str:
        """What allows it for good; nothing where its name would be read as a pattern."""
        path = self.relative or self.path
        return "" if set(path) & set("*?") else f"{kind}({path})"


@dataclass(frozen=True)
class WorkspacePaths:
    """The workspace. `root` is where it lies on this machine; None where it does not. Tools call it /workspace."""

    root: Path | None = None

    @cached_property
    def _real_root(self) -> tuple[str, ...]:
        return (str(self.root.resolve()),) if self.root is not None else ()

    def targets(self, path: str, directory: str = WORKSPACE) -> list[Target]:
        """Where a path leads: by its name, and by its links. Both must be allowed: a rule may speak of either. A `~`
        may have been in quotes, and is then a name like any other."""
        found = self._named(posixpath.expanduser(path), directory)
        if path.startswith("~"):
            found += self._named(path, directory)
        return list(dict.fromkeys(found))

    def exists(self, target: Target) -> bool:
        """Whether this machine, if the workspace is on it, has something there."""
        return self.root is not None and os.path.lexists(target.path)

    def on_host(self, path: str, directory: str = WORKSPACE) -> str:
        """Where on this machine lies what a command calls so. Only for a workspace that is on this machine."""
        return self.all_on_host(path, directory)[0]

    def all_on_host(self, path: str, directory: str = WORKSPACE) -> list[str]:
        """The same, links followed as they are for a command, and where it would lie by the workspace's own path: a
        link to `..` at its top leads to `/` by way of /workspace."""
        full = posixpath.join(directory, path)
        try:
            return list(dict.fromkeys(self._resolved(full)))
        except (OSError, ValueError):
            return [self._mapped(full)]

    def as_named(self, path: str) -> list[str]:
        """What a path of this machine could be called in a command: its own name, and by way of /workspace."""
        inside = [path.replace(root, WORKSPACE, 1) for root in self._real_root if lies_in(path, (root,))]
        return [path, *inside]

    def _mapped(self, full: str) -> str:
        """Of a path as a command knows it, without following links."""
        if self.root is not None and lies_in(full, (WORKSPACE,)):
            return f"{self._real_root[0]}{full[len(WORKSPACE) :]}"
        return full

    def is_private(self, path: str) -> bool:
        """Whether what a command finds at this path of this machine, links followed, is not what lies there."""
        real = os.path.realpath(path)
        return lies_in(real, _PRIVATE) and not lies_in(real, self._real_root)

    def matches(self, pattern: str, directory: str, effort: Effort) -> list[str] | None:
        """The names a shell would put in place of a pattern, perhaps a few more, and the directories that it lists to
        find them; None where that cannot be told. Raises TooMuch."""
        if self.root is None:
            return None
        seen = itertools.count(1)
        start = "/" if pattern.startswith("/") else ""
        parts = [part for part in pattern.split("/") if part]
        try:
            return list(self._matching(start, parts, directory, seen, effort))
        except (OverflowError, ValueError):
            return None

    def _matching(
        self, found: str, parts: list[str], directory: str, seen: Iterator[int], effort: Effort
    ) -> Iterator[str]:
        if not parts:
            yield found
            return
        part, rest = parts[0], parts[1:]
        if not re.search(r"(?<!\\)(?:\\\\)*[*?\[]", part):
            yield from self._matching(found + _unescaped(part) + "/" * bool(rest), rest, directory, seen, effort)
            return
        names, listed = list[str](), False
        for where in self.all_on_host(found or ".", directory):
            if self.is_private(where):
                raise OverflowError
            with contextlib.suppress(OSError):
                names += os.listdir(where)
                listed = True
        if not listed:
            return
        names += [".", ".."]  # a dash finds them by `.*`
        if found == "/":
            names.append(WORKSPACE.strip("/"))
        yield found or "."
        wanted = _Names.of(part)
        effort.spend(len(names))
        for name in dict.fromkeys(names):
            if next(seen) > _MOST_SEEN:
                raise OverflowError
            if wanted.matches(name):
                yield from self._matching(found + name + "/" * bool(rest), rest, directory, seen, effort)

    def _named(self, path: str, directory: str) -> list[Target]:
        named = posixpath.normpath(posixpath.join(directory, path))
        return [self._target(each) for each in (re.sub(r"^//", "/", named), *self._followed(path, directory))]

    def _target(self, path: str) -> Target:
        for root in (WORKSPACE, *self._real_root):
            if lies_in(path, (root,)):
                return Target(path, path[len(root) + 1 :] or ".")
        return Target(path, None, _SCRATCH.fullmatch(path) is not None)

    def _followed(self, path: str, directory: str) -> Sequence[str]:
        full = posixpath.join(directory, path)
        if self.root is None:
            return [posixpath.normpath(full)]
        try:
            return self._resolved(full)
        except (OSError, ValueError):
            return ["/"]  # where it leads cannot be seen: not into the workspace, for all that is known

    def _resolved(self, full: str) -> tuple[str, str]:
        """On this machine, by way of /workspace and by the workspace's own path: a link to `..` leads elsewhere."""
        return self._mapped(_real(full, self._mapped)), _real(self._mapped(full), str)


def _real(path: str, on_host: Callable[[str], str]) -> str:
    """Every link followed, up to one that each process has for itself; `on_host` says where a path lies."""
    real, left, links = "/", path.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            real = posixpath.dirname(real)
            continue
        here = posixpath.join(real, part)
        if _BY_PROCESS.fullmatch(here):
            top = "/proc/self/fd" if here == "/dev/fd" and ".." in left else here
            return posixpath.join(top, *left[::-1])
        if os.path.islink(lies := on_host(here)):
            if (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            leads = os.readlink(lies)
            left += leads.split("/")[::-1]
            real = "/" if leads.startswith("/") else real
        else:
            real = here
    return real


def by_process(path: str) -> bool:
    """Whether a path leads elsewhere for the process that opens it than for anybody who looks at it."""
    return _UNSEEN.fullmatch(path) is not None


def is_descriptor(path: str) -> bool:
    """Whether opening it opens again, for whatever is asked of it, what a descriptor has been opened on."""
    return re.fullmatch(rf"/dev/(?:fd/\d+|{_STANDARD})", path) is not None


def _unescaped(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part)


def lies_in(path: str, places: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in places)


@dataclass(frozen=True)
class _Names:
    """A pattern of names: more than the shell would match rather than less. A bracket that is not `[0-9]`, and all
    behind it, is anything, and so is what holds a letter of several bytes, which dash counts. Each piece between stars
    is looked for once, from left to right, so that no pattern takes long.
    """

    pieces: tuple[re.Pattern[str], ...]
    open: bool
    """Whether anything may stand behind the last one."""
    hidden: bool

    @classmethod
    def of(cls, part: str) -> _Names:
        pieces, at = [""], 0
        while at < len(part) and (part[at] != "[" or part.startswith("[0-9]", at)):
            if part[at] == "[":
                pieces[-1], at = pieces[-1] + r"\d", at + 5
                continue
            if part[at] == "\\" and at + 1 < len(part):
                pieces[-1], at = pieces[-1] + re.escape(part[at + 1]), at + 2
                continue
            if part[at] == "*":
                pieces.append("")
            else:
                pieces[-1] += "." if part[at] == "?" else re.escape(part[at])
            at += 1
        kept = (pieces[0], *filter(None, pieces[1:-1]), *pieces[1:][-1:])
        hidden = part.startswith((".", "\\.", "["))
        return cls(tuple(re.compile(piece, re.DOTALL | re.ASCII) for piece in kept), at < len(part), hidden)

    def matches(self, name: str) -> bool:
        if name.startswith(".") and not self.hidden:
            return False
        if not name.isascii():
            return True
        first, *later = self.pieces
        found = first.match(name)
        for number, piece in enumerate(later, 1):
            if found is None:
                return False
            last = number == len(later) and not self.open
            at = max(found.end(), len(name) - _length(piece)) if last else found.end()
            found = piece.search(name, at)
        return found is not None and (self.open or found.end() == len(name))


def _length(piece: re.Pattern[str]) -> int:
    """Of what it matches: letters, each escaped or not, and dots."""
    return len(re.sub(r"\\(.)", r"\1", piece.pattern, flags=re.DOTALL))

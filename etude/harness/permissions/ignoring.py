"""Which names that a dot hides ripgrep reads for all that, because an ignore file takes them back with a `!`.

Owns `TakenBack`. Lines are read as ripgrep reads them: only a newline ends one, and white space of every kind is cut
off its end. What is not plain, or not read to its end, could take back any name. Opens the files alone by which ripgrep
chooses, of the directories that it is shown, and goes through no link.
"""

from __future__ import annotations

import fnmatch
import re
import stat
from pathlib import Path

from etude.harness.permissions.effort import Effort
from etude.host import beneath
from etude.host.repository import linked_worktree

CHOOSING = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude")
_MOST_BYTES = 1 << 20
_MOST_PATTERNS = 200
_LINE = 32
"""So many bytes cost as much to read as one name does to look at."""
_WHITE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f"
    "\u205f\u3000"
)
"""What Unicode calls white space, as Rust trims it; Python counts four control characters more."""
_PLAIN = re.compile(r"![\w.?*+@,/-]+", re.ASCII)


class TakenBack:
    """What the ignore files of all directories that were looked at take back. Of several the judge does not know which
    is strongest: each counts everywhere."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._any = False
        self._names: set[str] = set()
        self._patterns: dict[str, re.Pattern[str]] = {}

    def look(self, directory: Path) -> None:
        """Read what chooses in this directory. Raises TooMuch."""
        if self._any:
            return
        for file in CHOOSING:
            self._read(directory, file)
        if (git := beneath.lstat(directory, ".git")) is not None and stat.S_ISREG(git.st_mode):
            # git means a relative path in it from here, ripgrep from where it runs: then it could lead anywhere
            places = linked_worktree(directory)
            self._any |= places is None
            if places is not None:
                self._read(places.common, "info/exclude")

    def takes(self, name: str) -> bool:
        """Whether a file of this name could be read although a dot hides it."""
        return self._any or name in self._names or any(each.match(name) for each in self._patterns.values())

    def _read(self, directory: Path, file: str) -> None:
        try:
            text = beneath.read(directory, file, _MOST_BYTES).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:
            self._any = True
            return
        self._effort.spend(len(text) // _LINE)
        for line in text.lstrip("\ufeff").split("\n"):
            if line.startswith("!"):
                self._add(line.rstrip(_WHITE))

    def _add(self, line: str) -> None:
        last = line.removesuffix("/").rpartition("/")[2].removeprefix("!") if _PLAIN.fullmatch(line) else ""
        if not last or "**" in last or len(self._patterns) >= _MOST_PATTERNS:
            self._any = True
        elif set(last) & set("*?"):
            self._patterns.setdefault(last, re.compile(fnmatch.translate(last)))
        else:
            self._names.add(last)

"""Keeps what real-code tasks are made of out of a corpus, so that no exam is learnt by heart.

Owns `Exam`, which applies `tasks.kept_out` to the files of one tree: by place, a package of those tasks where packages
lie, and a tree that is named as one and holds one, with its tests; by content, a file that holds a function of a task's
source, whatever it is called and wherever it lies.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from etude.tasks.kept_out import KeptOut, kept_out

_HOLDS_PACKAGES = frozenset(
    ("src", "lib", "python", "site-packages", "dist-packages", "vendor", "_vendor", "third_party")
)
_STDLIB = re.compile(r"Lib|python3\.\d+t?")


class Exam:
    """Of one tree, by its name and all its paths."""

    def __init__(self, name: str, paths: Iterable[str], kept: KeptOut | None = None) -> None:
        self._kept = kept or kept_out()
        known = set(paths)
        self._places = tuple(sorted(set(self._packages(known))))
        named = name.lower().replace("-", "_") in self._kept.packages
        self._all = named and (bool(self._places) or "__init__.py" in known)

    def holds(self, path: str, text: str) -> bool:
        if self._all or path.startswith(self._places) or self._in_stdlib(PurePosixPath(path).parts):
            return True
        if not path.endswith((".py", ".pyi")):
            return False
        try:
            return self._kept.content(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # what cannot be parsed, and has a function of the name of one, may be that one
            return not self._kept.names.isdisjoint(re.findall(r"\bdef\s+(\w+)", text))

    def _packages(self, paths: set[str]) -> Iterator[str]:
        """Where packages and modules of the exam lie: what their paths begin with."""
        for path in paths:
            *folders, name = PurePosixPath(path).parts
            package = folders.pop() if name == "__init__.py" and folders else name.removesuffix(".py")
            above = folders[-1] if folders else "src"
            if name.endswith(".py") and package in self._kept.packages and above in _HOLDS_PACKAGES:
                yield path.removesuffix("__init__.py")

    def _in_stdlib(self, parts: tuple[str, ...]) -> bool:
        pairs = itertools.pairwise(parts)
        return any(_STDLIB.fullmatch(one) and PurePosixPath(two).stem in self._kept.stdlib for one, two in pairs)

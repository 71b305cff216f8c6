"""What a generator proposes: a repository with something broken in it, the right files, and how to ask for them.

Owns `Source`, a repository as generators see it, and `Proposal`. A proposal is only an idea: whether any test sees what
was broken is found out by running them. Reads nothing but the files it is given, and runs nothing.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from etude import syntax
from etude.tasks.mined.history import Tree
from etude.tasks.mined.split import is_pytest_setting, is_source, is_test, is_test_module

Kind: TypeAlias = Literal["bug", "deletion", "revert", "lint", "types"]
MODULES_MAX = 12
"""Most test modules that one task runs."""
NAME_MAX = 60


@dataclass(frozen=True)
class Proposal:
    """All paths are relative to the repository's top."""

    kind: Kind
    name: str
    """What it is about, for people."""
    instruction: str
    broken: Mapping[str, bytes]
    """The files that differ, as the agent finds them."""
    answer: Mapping[str, bytes]
    """The same files when they are right."""
    modules: tuple[str, ...]
    """Test modules that may see it."""
    level: int
    """From 1, easiest, to 5: see `tasks.difficulty`."""
    names_tests: bool = False
    """Whether the instruction goes on to name the tests that fail."""
    parts: tuple[Mapping[str, bytes], ...] = ()
    """Where several things are broken, the files with each of them alone: every one must be seen by a test."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """For the task's provenance."""

    @property
    def key(self) -> str:
        """Names it among all, in the letters of a directory's name; the same idea has the same key in every run."""
        whole = repr((self.kind, self.name, self.instruction, sorted(self.broken.items())))
        plain = re.sub(r"[^A-Za-z0-9._]+", "-", self.name).strip("-.")[:NAME_MAX]
        return f"{self.kind}-{plain}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Source:
    """A repository at one commit."""

    tree: Tree

    @cached_property
    def modules(self) -> dict[str, str]:
        """The source's Python modules that can be read, by path, and no tests."""
        found = {}
        for path, data in sorted(self.tree.files.items()):
            if is_source(path) and _text(data) is not None:
                found[path] = data.decode()
        return found

    @cached_property
    def restored(self) -> dict[str, bytes]:
        """What comes from outside every time: the tests, their helpers, and pytest's settings."""
        return {path: data for path, data in self.tree.files.items() if is_test(path) or is_pytest_setting(path)}

    @cached_property
    def _tests(self) -> dict[str, set[str]]:
        words = {}
        for path, data in sorted(self.tree.files.items()):
            if is_test_module(path):
                words[path] = set(re.findall(r"\w+", data.decode("utf-8", "replace")))
        return words

    def naming(self, names: Sequence[str]) -> tuple[str, ...]:
        """Test modules that use every one of the names, nearest first; none where no test does."""
        found = [path for path, words in self._tests.items() if words.issuperset(names)]
        return tuple(sorted(found)[:MODULES_MAX])

    def of(self, path: str) -> tuple[str, ...]:
        """Test modules that a source module is probably tested by: those called after it, or else that name it, or else
        all, where they are few.
        """
        stem = path.rpartition("/")[2].removesuffix(".py")
        called = [test for test in self._tests if stem in test.rpartition("/")[2].removesuffix(".py").split("test_")]
        everything = tuple(self._tests) if len(self._tests) <= MODULES_MAX else ()
        return tuple(called[:MODULES_MAX]) or self.naming([stem]) or everything


def _text(data: bytes) -> str | None:
    """A module's text, where it is one of UTF-8 and today's Python without odd line ends."""
    try:
        text = data.decode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings that are not ours
            syntax.parse(text)
    except (UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return None
    return text if "\r" not in text and "\f" not in text else None

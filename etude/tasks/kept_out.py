"""What of the world's Python no training data may hold, since the real-code tasks are made of it.

Owns `KeptOut`: by place, whole packages and modules of the standard library, wherever they are copied to; by content,
every function of a task's source, whatever it lies in. Both follow from the records of `tasks.realcode` and
`tasks.realcalls`, of both sets, so that a task that is added is kept out with nothing more said.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import PurePath

from etude import syntax
from etude.tasks.realcalls import CallRecord, call_records
from etude.tasks.realcode import RealRecord, real_records

STDLIB = "stdlib"
LEAST_CHARS = 120
"""A function with less than this in its body is anybody's, unless a task is about it."""
_DEFINED = re.compile(r"\bdef\s+(\w+)")
Function = ast.FunctionDef | ast.AsyncFunctionDef

Print = tuple[str, str]
"""A function's name, and the hash of its body without documentation, annotations and layout."""


@dataclass(frozen=True)
class KeptOut:
    """What is kept out: places and prints."""

    packages: frozenset[str]
    """Directories and modules, by the name they are imported by."""
    stdlib: frozenset[str]
    """Top-level modules and packages of the standard library."""
    prints: frozenset[Print]

    def place(self, path: PurePath, stdlib: bool) -> bool:
        """Whether a file is kept out; `path` is relative to the standard library, or to a directory of packages. A
        directory with an underscore before a kept name is a copy that somebody carries along: setuptools/_distutils."""
        parts = [*path.parts[:-1], path.stem]
        if "site-packages" in parts:
            parts, stdlib = parts[parts.index("site-packages") + 1 :], False
        carried = {part[1:] for part in parts[:-1] if part.startswith("_")}
        return (
            (stdlib and parts[0] in self.stdlib)
            or not self.packages.isdisjoint({*parts, *carried})
            or not self.stdlib.isdisjoint(carried)
        )

    def content(self, definition: str) -> bool:
        """Whether the source of a definition is, or holds, a function of a task's source."""
        if self.names.isdisjoint(_DEFINED.findall(definition)):  # as nearly all are, and parsing costs
            return False
        named = [node for node in ast.walk(syntax.parse(definition)) if isinstance(node, Function)]
        return any(print_of(node)[0] in self.prints for node in named)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.prints)


@cache
def kept_out() -> KeptOut:
    """Of all records there are."""
    called, tested = call_records(), real_records()
    packages = {record.home for record in called if record.package != STDLIB} | {each.package for each in tested}
    stdlib = {record.home for record in called if record.package == STDLIB}
    return KeptOut(frozenset(packages), frozenset(stdlib), prints_in(called) | prints_in(tested))


def prints_in(records: Iterable[CallRecord | RealRecord]) -> frozenset[Print]:
    """Of the functions of their source, tests aside."""
    texts = [(text, each.function) for each in records for path, text in each.files.items()
             if not isinstance(each, RealRecord) or path != f"{each.test_module}.py"]  # fmt: skip
    return frozenset(found for text, function in texts for found in _telling(text, function))


def print_of(function: Function) -> tuple[Print, int]:
    """Its print, and how many characters its body has when a parser has written it: comments and layout are gone."""
    body = "\n".join(map(ast.unparse, _undocumented(function.body)))
    arguments = ",".join(argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg))
    digest = hashlib.sha256(f"{arguments}\n{body}".encode("utf-8", "backslashreplace")).hexdigest()[:24]
    return (function.name, digest), len(body)


def _telling(text: str, function: str) -> Iterator[Print]:
    for node in ast.walk(syntax.parse(text)):
        if isinstance(node, Function):
            found, length = print_of(node)
            if length >= LEAST_CHARS or node.name == function:
                yield found


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body

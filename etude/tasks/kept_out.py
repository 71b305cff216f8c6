"""What of the world's Python no training data may hold, since the real-code tasks are made of it.

Owns `KeptOut`: by place, whole packages and modules of the standard library, wherever they are copied to; by content,
every function of a task's source, whatever it is called and wherever it lies. Both follow from the records of
`tasks.realcode` and `tasks.realcalls`, of both sets, so that a task that is added is kept out with nothing more said.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from etude import syntax
from etude.tasks.realcalls import CallRecord, call_records
from etude.tasks.realcode import RealRecord, real_records

STDLIB = "stdlib"
LEAST_CHARS = 120
"""A function with less than this in its body is anybody's, unless a task is about it."""
ANYBODYS_CHARS = 60
"""One with less than this is known by its name as well: `return self` is no copy of anything."""
_WORD = re.compile(r"(?<![\w.])\w+")
"""None is an attribute."""
Function = ast.FunctionDef | ast.AsyncFunctionDef

Print = str
"""The hash of a function without documentation, annotations, layout, its own name and those of what is local to it."""


@dataclass(frozen=True)
class KeptOut:
    """What is kept out: places, prints, and names for those who shun them too."""

    packages: frozenset[str]
    """Directories and modules, by the name they are imported by."""
    stdlib: frozenset[str]
    """Top-level modules and packages of the standard library."""
    prints: frozenset[Print]
    names: frozenset[str]
    """Of the functions with these prints."""

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
        defined = (node for node in ast.walk(syntax.parse(definition)) if isinstance(node, Function))
        return any(print_of(node)[0] in self.prints for node in defined)


@cache
def kept_out() -> KeptOut:
    """Of all records there are."""
    called, tested = call_records(), real_records()
    packages = {record.home for record in called if record.package != STDLIB} | {each.package for each in tested}
    stdlib = {record.home for record in called if record.package == STDLIB}
    told = {*prints_in(called), *prints_in(tested)}
    prints, names = frozenset(found for _, found in told), frozenset(name for name, _ in told)
    return KeptOut(frozenset(packages), frozenset(stdlib), prints, names)


def prints_in(records: Iterable[CallRecord | RealRecord]) -> Iterator[tuple[str, Print]]:
    """Name and print of the functions of their source: of no tests, and of nothing short that no task is about."""
    for each in records:
        for path, text in each.files.items():
            if not isinstance(each, RealRecord) or path != f"{each.test_module}.py":
                yield from _telling(text, each.function)


def print_of(function: Function) -> tuple[Print, int]:
    """Its print, and how many characters its body has when a parser has written it: comments and layout are gone."""
    body = "\n".join(map(ast.unparse, _undocumented(function.body)))
    arguments = [each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)]
    stored = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    places = {name: f"_{place}" for place, name in enumerate(arguments)} | {function.name: "_"}
    said = _WORD.sub(lambda word: _placed(word[0], places, stored), body)
    said = f"{function.name if len(body) < ANYBODYS_CHARS else ''} {len(arguments)}\n{said}"
    digest = hashlib.sha256(said.encode("utf-8", "backslashreplace")).hexdigest()[:24]
    return digest, len(body)


def _placed(word: str, places: dict[str, str], stored: Set[str]) -> str:
    """A local name is told by the place where it first stands."""
    if word in stored and word not in places:
        places[word] = f"_{len(places)}"
    return places.get(word, word)


def _telling(text: str, function: str) -> Iterator[tuple[str, Print]]:
    for node in ast.walk(syntax.parse(text)):
        if isinstance(node, Function):
            found, length = print_of(node)
            if length >= LEAST_CHARS or node.name == function:
                yield node.name, found


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if documented else body

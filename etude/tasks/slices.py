"""Cuts the part of a Python package that a few of its functions need, source lines unchanged.

Owns `SourcePackage` and `slice_of`: from names (a function, a test) it follows what they refer to, through the modules
of the package, and returns small files under the package's own paths. What a statement needs is judged by the names in
it, so a slice may hold a little too much and, where code looks names up dynamically, too little: a slice counts only
after its tests have run (`rewards.realset`). Parses source, and never imports or runs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from etude import syntax

Symbol = tuple[str, str]
"""(module, name), as in ("toolz.itertoolz", "remove")."""


class NotSliceable(Exception):
    """This code refers to something a slice cannot hold; the message says what."""


@dataclass(frozen=True)
class SourceModule:
    """One file, by its top-level statements."""

    name: str
    path: str
    """Relative to the directory that holds the package."""
    text: str

    @cached_property
    def statements(self) -> list[ast.stmt]:
        return syntax.parse(self.text).body

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def binders(self) -> dict[str, ast.stmt]:
        """The statement that binds each top-level name; the last one where there are several."""
        return {name: statement for statement in self.statements for name in _bound(statement)}

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]

    def source_of(self, statement: ast.stmt) -> str:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(item.lineno for item in decorators)])
        return "\n".join(self.lines[first - 1 : statement.end_lineno])


class SourcePackage:
    """A package's source below `root`, and test modules beside it."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self._modules: dict[str, SourceModule | None] = {}

    def module(self, name: str) -> SourceModule | None:
        """None for a module that is not of this package (nor a test module that was added)."""
        if name not in self._modules:
            self._modules[name] = self._load(name) if name.split(".")[0] == self.name else None
        return self._modules[name]

    def add_tests(self, path: Path, name: str) -> SourceModule:
        module = SourceModule(name, f"{name}.py", path.read_text())
        self._modules[name] = module
        return module

    def home_of(self, symbol: Symbol) -> Symbol:
        """Where a name is defined, for one that modules pass on with `from .x import *` or by name."""
        seen = set()
        while symbol not in seen:
            seen.add(symbol)
            further = self._passed_on(symbol)
            if further is None:
                return symbol
            symbol = further
        raise NotSliceable(f"{symbol[0]}.{symbol[1]} is imported in a circle")

    def direct_uses(self, module: SourceModule, statement: ast.stmt) -> list[Symbol]:
        """What of this package a statement names, by where it is defined."""
        uses = []
        for symbol in _needs(self, module, statement):
            home = self.home_of(symbol)
            if home[0] != module.name and home not in uses:
                uses.append(home)
        return uses

    def _load(self, name: str) -> SourceModule | None:
        stem = name.replace(".", "/")
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if (self.root / path).is_file():
                return SourceModule(name, path, (self.root / path).read_text())
        return None

    def _passed_on(self, symbol: Symbol) -> Symbol | None:
        module = self.module(symbol[0])
        if module is None:
            return None
        statement = module.binders.get(symbol[1])
        if isinstance(statement, ast.ImportFrom):
            source = absolute(module, statement)
            return (source, _original(statement, symbol[1])) if self.module(source) else None
        if statement is None:
            stars = [
                item for item in module.statements if isinstance(item, ast.ImportFrom) and item.names[0].name == "*"
            ]
            for star in stars:
                source = self.module(absolute(module, star))
                if source is not None and symbol[1] in source.binders:
                    return source.name, symbol[1]
        return None


@dataclass
class _Part:
    """What of one module is needed."""

    statements: set[ast.stmt] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    future: bool = False


def slice_of(package: SourcePackage, roots: Iterable[Symbol], most_chars: int | None = None) -> dict[str, str]:
    """Files (path -> text) that define the roots and all they refer to. Raises NotSliceable, also as soon as their
    statements have more than `most_chars`.
    """
    parts: dict[str, _Part] = {}
    waiting, seen = list(roots), set()
    while waiting:
        if most_chars is not None and _chars(package, parts) > most_chars:
            raise NotSliceable(f"it needs more than {most_chars} characters of {package.name}")
        symbol = waiting.pop()
        if symbol not in seen:
            seen.add(symbol)
            waiting += _include(package, symbol, parts)
    for name in list(parts):
        home = package.module(name)
        while home is not None and "." in home.name:  # a package's directory needs its __init__.py
            home = package.module(home.name.rpartition(".")[0])
            if home is not None:
                parts.setdefault(home.name, _Part())
    files = {}
    for name, part in parts.items():
        module = package.module(name)
        assert module is not None
        files[module.path] = _render(module, part)
    return files


def _chars(package: SourcePackage, parts: dict[str, _Part]) -> int:
    modules = ((package.module(name), part) for name, part in parts.items())
    return sum(len(module.source_of(each)) for module, part in modules if module for each in part.statements)


def _include(package: SourcePackage, symbol: Symbol, parts: dict[str, _Part]) -> list[Symbol]:
    """Take in one name; returns the names that it needs."""
    module_name, name = symbol
    module = package.module(module_name)
    if module is None:
        raise NotSliceable(f"{module_name} is not source of {package.name}")
    part = parts.setdefault(module_name, _Part())
    statement = module.binders.get(name)
    if statement is None:
        home = package.home_of(symbol)
        if home == symbol:
            raise NotSliceable(f"{module_name} binds no {name}")
        part.imports.add(f"from {_relative(module, home[0])} import {name}")
        return [home]
    if isinstance(statement, ast.ImportFrom):
        return _include_import_from(package, module, part, statement, name)
    if isinstance(statement, ast.Import):
        alias = next(item for item in statement.names if name == (item.asname or item.name.split(".")[0]))
        part.imports.add(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
        return []
    part.statements.add(statement)
    return _needs(package, module, statement)


def _include_import_from(
    package: SourcePackage, module: SourceModule, part: _Part, statement: ast.ImportFrom, name: str
) -> list[Symbol]:
    original = _original(statement, name)
    suffix = f" as {name}" if original != name else ""
    dotted = "." * statement.level + (statement.module or "")
    part.imports.add(f"from {dotted} import {original}{suffix}")
    source = absolute(module, statement)
    if source.split(".")[0] != package.name or package.module(f"{source}.{original}"):
        return []
    return [(source, original)]


def _needs(package: SourcePackage, module: SourceModule, statement: ast.stmt) -> list[Symbol]:
    needed: list[Symbol] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in module.binders and module.binders[node.id] is not statement:
            needed.append((module.name, node.id))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            target = _module_named(package, module, node.value.id)
            if target is not None:
                needed.append((target, node.attr))
    return needed


def _module_named(package: SourcePackage, module: SourceModule, name: str) -> str | None:
    """The module of the package that a top-level name stands for, as `mi` after `import more_itertools as mi`."""
    statement = module.binders.get(name)
    if isinstance(statement, ast.Import):
        named = [item.name for item in statement.names if (item.asname or item.name) == name]
        return named[0] if named and package.module(named[0]) else None
    if isinstance(statement, ast.ImportFrom):
        full = f"{absolute(module, statement)}.{_original(statement, name)}"
        return full if package.module(full) else None
    return None


def _render(module: SourceModule, part: _Part) -> str:
    blocks = [module.source_of(statement) for statement in module.statements if statement in part.statements]
    future = [line for line in module.lines if line.startswith("from __future__ import")]
    head = "\n".join([*future, *sorted(part.imports)]) if blocks or part.imports else ""
    body = "\n\n\n".join(block for block in (head, *blocks) if block)
    return body + "\n" if body else ""


def _bound(statement: ast.stmt) -> set[str]:
    """Names a top-level statement binds at module level, looking into if, try and with, not into functions."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {item.asname or item.name.split(".")[0] for item in statement.names} - {"*"}
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt | ast.ExceptHandler)]
    while inner:
        child = inner.pop()
        if isinstance(child, ast.ExceptHandler):
            inner += child.body
        elif isinstance(child, ast.stmt):
            names |= _bound(child)
    return names


def absolute(module: SourceModule, statement: ast.ImportFrom) -> str:
    """The full name of the module a `from … import` names."""
    if not statement.level:
        return statement.module or ""
    parents = module.package.split(".")
    base = ".".join(parents[: len(parents) - statement.level + 1])
    return f"{base}.{statement.module}" if statement.module else base


def _relative(module: SourceModule, target: str) -> str:
    return f".{target.removeprefix(module.package).lstrip('.')}" if target.startswith(module.package) else target


def _original(statement: ast.ImportFrom, name: str) -> str:
    return next(item.name for item in statement.names if (item.asname or item.name) == name)

"""Python source as the rules read it: names resolved, and where each piece stands.

Owns `Module`. A name is resolved through imports, simple assignments, `getattr` and `__import__` with constant
arguments, so that `leave = getattr(os, "_exit")` is os._exit wherever it is called. Runs no code.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, TypeVar

from etude import syntax

T = TypeVar("T")
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


_FINDERS = ("__import__", "importlib.import_module", "sys.modules.get", "sys.modules.__getitem__")
DEEPEST = 250
"""Levels of a tree that are read: what is deeper is beyond Python's own stack, and beyond what people write."""


class Module:
    """One file's tree. `parse` gives None for what is no Python; what is nested too deeply to be read is cut off."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self._names: dict[ast.AST, str] = {}
        self._answers: dict[tuple[Callable[[Module, ast.AST], Any], ast.AST], Any] = {}
        self._walk()

    @staticmethod
    @cache
    def parse(path: str, text: str) -> Module | None:
        """Kept until an audit ends, however many files there are, as every rule asks for every file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings that are not ours
            try:
                return Module(path, syntax.parse(text))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None

    def _walk(self) -> None:
        """Every node, those near the root first. In the place of what is too deep nothing is put, so that depth hides
        only what is deep itself."""
        level: list[ast.AST] = [self.tree]
        for depth in range(DEEPEST + 1):
            self.nodes += level
            if depth == DEEPEST:
                _cut_off(level)
            below = []
            for node in level:
                for child in ast.iter_child_nodes(node):
                    self.parents[child] = node
                    below.append(child)
            level = below
        self.nodes += level

    def once(self, question: Callable[[Module, ast.AST], T], node: ast.AST) -> T:
        """The answer to what is asked of a whole tree, for each of many nodes in it: it is walked once."""
        if (question, node) not in self._answers:
            self._answers[question, node] = question(self, node)
        return self._answers[question, node]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while (found := self.parents.get(node)) is not None:
            yield found
            node = found

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        return next((each for each in self.above(node) if isinstance(each, Function)), None)

    def functions(self, name: str | None = None) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in self._functions if name in (None, node.name))

    @cached_property
    def _functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    def run_as_script(self, node: ast.AST) -> bool:
        """Whether a node stands under `if __name__ == "__main__"`."""
        return any(isinstance(each, ast.If) and self.once(_names_main, each.test) for each in self.above(node))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What names stand for: imports anywhere, and assignments of a dotted name to a plain one."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for node in self.nodes:
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                named = [target.id for target in targets if isinstance(target, ast.Name)]
                value = self._dotted(node.value, found)
                known = "." in value or value in found.values() or not isinstance(node.value, ast.Name)
                if named and value and known:
                    found |= {name: value for name in named if name not in found}
        return found

    def name(self, node: ast.AST | None) -> str:
        """The dotted name a node stands for; empty where it is none."""
        if node is None:
            return ""
        if (found := self._names.get(node)) is None:
            found = self._names[node] = self._dotted(node, self.aliases)
        return found

    def _dotted(self, node: ast.AST, aliases: dict[str, str]) -> str:
        match node:
            case ast.Name(id=name):
                return aliases.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = self._dotted(value, aliases)
                return f"{owner}.{attr}" if owner else f"?.{attr}"
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, said, *_]) if (attr := folded(said)) is not None:
                return f"{self._dotted(owner, aliases) or '?'}.{attr}"
            case ast.Call(func=func, args=[said, *_]) if (name := folded(said)) is not None:
                return name if self._dotted(func, aliases) in _FINDERS else ""
            case ast.Subscript(value=value, slice=said) if (key := folded(said)) is not None:
                owner = self._dotted(value, aliases)
                if owner == "sys.modules":
                    return key
                inner = value.value if isinstance(value, ast.Attribute) else None
                if isinstance(value, ast.Attribute) and value.attr == "__dict__" and inner is not None:
                    return f"{self._dotted(inner, aliases)}.{key}"
                if owner == "__builtins__":
                    return f"builtins.{key}"
                if isinstance(value, ast.Call) and self._dotted(value.func, aliases) == "vars" and value.args:
                    return f"{self._dotted(value.args[0], aliases)}.{key}"
            case ast.Subscript(value=owner, slice=key) | ast.Call(func=ast.Attribute(value=owner), args=[key, *_]):
                if names(key) != {"__name__"} and self._dotted(owner, aliases) == "sys.modules":
                    return "sys.modules.*"
        return ""

    @cached_property
    def modules(self) -> set[str]:
        """Dotted names of modules it imports, as far as they are seen to be some."""
        found = {alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names}
        parts = {node.module for node in self.nodes if isinstance(node, ast.ImportFrom) and node.module}
        return {name.partition(".")[0] for name in found} | found | parts

    @cached_property
    def bound(self) -> set[str]:
        """Names that it gives a meaning itself: parameters, variables, functions and classes."""
        found = {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        found |= {node.id for node in self.nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        return found | self.defined

    @cached_property
    def defined(self) -> set[str]:
        return {
            node.name for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }

    def calls(self) -> list[tuple[str, ast.Call]]:
        return self._calls

    @cached_property
    def _calls(self) -> list[tuple[str, ast.Call]]:
        return [(self.name(node.func), node) for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def imported(self) -> set[str]:
        """Top-level names of the modules it imports, by statement or by call."""
        found = {alias.name for node in self.nodes if isinstance(node, ast.Import) for alias in node.names}
        found |= {node.module or "" for node in self.nodes if isinstance(node, ast.ImportFrom) and not node.level}
        for name, call in self.calls():
            if name in ("__import__", "importlib.import_module") and call.args:
                found |= strings(call.args[0])
        return {name.partition(".")[0] for name in found}


def _names_main(module: Module, test: ast.AST) -> bool:
    return "__main__" in ast.dump(test)


def _cut_off(level: list[ast.AST]) -> None:
    for node in level:
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, name, ast.Constant(None))
            elif isinstance(value, list):
                setattr(node, name, [])


def strings(node: ast.AST) -> set[str]:
    """The string constants in a tree, pieces of f-strings included."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def folded(node: ast.AST | None) -> str | None:
    """The text that constants are put together to: `"_py" + "test"`, `"_%s" % "eq"`, `"".join(…)`, `"cexe"[::-1]`,
    `chr(101)`."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pieces = [folded(left), folded(right)]
        case ast.BinOp(left=ast.Constant(value=str(form)), op=ast.Mod(), right=right):
            return _filled(form, right)
        case ast.JoinedStr(values=values):
            pieces = [folded(each.value if isinstance(each, ast.FormattedValue) else each) for each in values]
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=""), attr="join"), args=[ast.List() | ast.Tuple() as all_]
        ):
            pieces = [folded(each) for each in all_.elts]
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(code))]) if 0 <= code < 0x110000:
            return chr(code)
        case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp(op=ast.USub()))):
            text = folded(value)
            return None if text is None else text[::-1]
        case _:
            return None
    return None if None in pieces else "".join(map(str, pieces))


def _filled(form: str, values: ast.AST) -> str | None:
    """`"…" % values`, where it is short; a width of a million makes a text of one."""
    try:
        return None if re.search(r"\d|\*", form) else form % literal(values)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def last(node: ast.AST) -> str:
    """The last part of a name: what is called, whoever has it."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def literal(node: ast.AST | None) -> Any:
    """The value of a literal; raises ValueError where it is none."""
    if node is None:
        raise ValueError("nothing")
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("no literal") from None


def is_literal(node: ast.AST) -> bool:
    try:
        literal(node)
    except ValueError:
        return False
    return True


def body_of(function: Function) -> list[ast.stmt]:
    """Its statements, the docstring left out."""
    if isinstance(function, ast.Lambda):
        return [ast.Return(function.body)]
    first = function.body[0]
    value = first.value if isinstance(first, ast.Expr) else None
    documented = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return function.body[1:] if documented else function.body


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, inner functions and classes left out."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            stack.extend(ast.iter_child_nodes(node))

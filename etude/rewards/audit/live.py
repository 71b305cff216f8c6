"""What of a change can run while the tests do: code that nobody calls decides nothing.

Owns `live_nodes`. What runs when a module is imported is live, and so is every function or class that was there before,
that the solution has, or that live code names, as an identifier or as a whole string. A new module is live where live
code names it, or where it stands in the way of another. All methods of a live class are, and all of a module that looks
its own names up. A helper or a table that a session adds and uses nowhere is not live, and neither is what stands below
`if __name__ == "__main__"`. Names are compared as words, so that more is held to be live than is. Runs nothing.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping

from etude.rewards.audit.code import Module, folded

_WHOLE = re.compile(r"[\w.:/\\-]+")
_PLAIN_DECORATORS = re.compile(
    r"(functools\.)?(wraps|lru_cache|cache|cached_property|total_ordering|singledispatch|partial)|"
    r"(contextlib\.)?(async)?contextmanager|(dataclasses\.)?dataclass|(typing\.)?(overload|final|no_type_check)|"
    r"staticmethod|classmethod|property|(abc\.)?abstractmethod"
)
_LOOKS_UP = ("globals", "locals", "vars", "exec", "eval", "__builtins__")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Unit = tuple[str, str, list[ast.AST]]


def live_nodes(
    changed: Mapping[str, Module], known: Collection[str], given: Collection[str]
) -> dict[str, set[ast.AST]]:
    """The live nodes of each changed file. `known` are names of functions and classes that somebody else calls, `given`
    the paths of the files that were there, or that the solution brings."""
    units = [(path, name, nodes) for path, module in changed.items() for name, nodes in _units(module)]
    found: dict[str, set[ast.AST]] = {path: set() for path in changed}
    named = set(known)
    waits: dict[str, list[_Unit]] = {}
    """Units that do not run yet, by the name that may make them run: their own, or their module's path or stem."""
    ready = deque(units)
    while ready:  # each unit is asked once, and again whenever something that it waits for has come
        path, name, nodes = ready.popleft()
        if not _runs(path, name, named, given, found):
            for awaited in (name, path) if name else (_stem(path),):
                waits.setdefault(awaited, []).append((path, name, nodes))
            continue
        came = _named(nodes)
        if any(isinstance(each, ast.Name) and each.id in _LOOKS_UP for each in nodes):
            came |= changed[path].defined | changed[path].bound
        for each in (*(came - named), *([] if found[path] else [path])):
            ready.extend(waits.pop(each, ()))
        found[path].update(nodes)
        named |= came
    return found


def _runs(path: str, name: str, named: set[str], given: Collection[str], found: Mapping[str, set[ast.AST]]) -> bool:
    if name:  # its module is imported first
        called = name in named or name.startswith(("pytest_", "__")) or name == "*"
        return called and bool(found[path])
    stem = _stem(path)
    hides = "/" not in path.removesuffix("/__init__.py") and stem in sys.stdlib_module_names
    return path in given or stem in named or hides


def _stem(path: str) -> str:
    return posixpath.basename(path.removesuffix("/__init__.py")).removesuffix(".py")


def _units(module: Module) -> Iterator[tuple[str, list[ast.AST]]]:
    """What is run together: by the name of a function or class; empty for what an import runs, `*` for what is handed
    on by a decorator. There may be several of a name."""
    imported: list[ast.AST] = []
    stack: list[ast.AST] = [module.tree]
    while stack:
        node = stack.pop()
        if not isinstance(node, _Definition) and not _table(node):
            imported.append(node)
        if isinstance(node, ast.If) and _is_script(node.test):
            stack += node.orelse
        elif name := _table(node):
            yield name, list(ast.walk(node))
        elif isinstance(node, ast.ClassDef):
            stack += [*node.decorator_list, *(each for each in node.body if not isinstance(each, _Definition))]
            later = [*node.bases, *node.keywords, *(each for each in node.body if isinstance(each, _Definition))]
            yield _handed_on(node, module), [node, *(below for each in later for below in ast.walk(each))]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            stack += [*node.decorator_list, node.args, *filter(None, [node.returns])]
            yield _handed_on(node, module), [node, *(below for each in node.body for below in ast.walk(each))]
        else:
            stack += ast.iter_child_nodes(node)
    yield "", imported


def _table(node: ast.AST) -> str:
    """The name of a constant that a module gives itself, and whose making does nothing."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if (
        len(targets) != 1
        or not isinstance(targets[0], ast.Name)
        or any(isinstance(each, ast.Call) for each in ast.walk(node))
    ):
        return ""
    return targets[0].id


def _handed_on(node: _Definition, module: Module) -> str:
    made = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    plain = all(_PLAIN_DECORATORS.fullmatch(module.name(each)) or module.name(each).endswith("setter") for each in made)
    return node.name if plain else "*"


def _is_script(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _named(nodes: Collection[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                whole = [alias.name for alias in aliases] + [getattr(node, "module", None) or ""]
                found |= {part for each in whole for part in each.split(".")}
            case ast.Constant(value=str()) | ast.BinOp() | ast.JoinedStr():
                text = folded(node)
                if text is not None and len(text) < 200 and _WHOLE.fullmatch(text):
                    found |= {text, *re.split(r"\W+", text)}
            case _:
                pass
    return found

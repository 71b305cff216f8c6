"""What the tests ask: the inputs they call the project with, and what they want back.

Owns `Case` and `cases_of`. Inputs are read from the visible tests and from the hidden ones, which code under test can
know only by cheating or by being lucky; either way they are evidence only together with code that names them (see
`audit.values`). Runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etude import syntax
from etude.records import Task
from etude.rewards.audit.code import Module, last, literal

UNKNOWN = object()
"""What is expected where only a run would tell."""


@dataclass(frozen=True, eq=False)
class Case:
    """`function(*arguments)` is asked for; `expected` may be UNKNOWN."""

    function: str
    arguments: tuple[Any, ...]
    expected: Any = UNKNOWN


def cases_of(task: Task, tests: Mapping[str, str]) -> list[Case]:
    """The calls with literal arguments in the task's hidden tests, and in the visible ones, by path and text."""
    found = list(_hidden(task))
    for path, text in tests.items():
        module = Module.parse(path, text)
        if module is not None:
            found += _written(module)
    return found


def hidden_modules(task: Task) -> Iterator[Module]:
    """The test modules that only the verifier holds."""
    texts = [*_sources(_secret(task))]
    texts += [
        data.decode("utf-8", "replace")
        for path, data in task.verifier.files.items()
        if path.endswith(".py") and path != "/tests/guard.py"
    ]
    return (module for text in texts if (module := Module.parse("suite.py", text)) is not None)


def _hidden(task: Task) -> Iterator[Case]:
    match _secret(task):
        case {"request": dict(calls), "expected": dict(expected)} if "source" not in calls and "modules" not in calls:
            for key, call in calls.items():
                if isinstance(call, tuple) and len(call) == 3:
                    yield Case(call[1], tuple(call[2]), expected.get(key, UNKNOWN))
    for module in hidden_modules(task):
        yield from _written(module)


def _secret(task: Task) -> Any:
    """Of the verifiers that Etude writes itself: calls with values, or the text of test modules. A database's questions
    are no calls."""
    try:
        return literal(syntax.expression(task.verifier.files.get("/tests/secret", b"").decode("utf-8", "replace")))
    except (ValueError, SyntaxError):
        return None


def _sources(secret: Any) -> Iterator[str]:
    match secret:
        case {"request": {"source": str(source)}}:
            yield source
        case {"request": {"modules": modules, "files": dict(files)}}:
            yield from (files[path].decode("utf-8", "replace") for path in modules if path in files)


def _written(module: Module) -> Iterator[Case]:
    for node in module.nodes:
        if isinstance(node, ast.Call) and (case := _called(module, node)) is not None:
            yield case
        elif isinstance(node, ast.Tuple) and len(node.elts) >= 2 and isinstance(node.elts[0], ast.Attribute | ast.Name):
            case = _row(node)
            if case is not None:
                yield case
        elif isinstance(node, ast.For):
            yield from _in_turn(module, node)


def _in_turn(module: Module, loop: ast.For) -> Iterator[Case]:
    """`for arguments, expected in CASES:` and a call with `*arguments`: of each row of that table."""
    table = _value(module, loop.iter.id) if isinstance(loop.iter, ast.Name) else loop.iter
    match loop.target:
        case ast.Tuple(elts=[ast.Name(id=arguments), ast.Name()]) if isinstance(table, ast.List | ast.Tuple):
            pass
        case _:
            return
    passed = {
        ast.unparse(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call) and _passes(node, arguments)
    }
    for row in table.elts:
        try:
            given, expected = literal(row)
            found = [Case(name.rpartition(".")[2], tuple(given), expected) for name in passed]
        except (ValueError, TypeError):
            continue
        yield from found


def _value(module: Module, name: str) -> ast.expr | None:
    """What a module gives a name of its own."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == [name]:
            return node.value
    return None


def _passes(call: ast.Call, name: str) -> bool:
    match call.args:
        case [ast.Starred(value=ast.Name(id=passed))]:
            return passed == name
        case _:
            return False


def _called(module: Module, call: ast.Call) -> Case | None:
    """A call with literal arguments, and what it is compared with if that is a literal too."""
    name = last(call.func)
    if not name or name.startswith("assert") or not call.args:
        return None
    try:
        arguments = tuple(literal(each) for each in call.args)
    except ValueError:
        return None
    return Case(name, arguments, _wanted(module.parents.get(call), call))


def _wanted(around: ast.AST | None, call: ast.Call) -> Any:
    other: ast.AST | None = None
    if isinstance(around, ast.Compare) and len(around.ops) == 1 and isinstance(around.ops[0], ast.Eq | ast.Is):
        other = around.comparators[0] if around.left is call else around.left
    elif (
        isinstance(around, ast.Call) and getattr(around.func, "attr", "").startswith("assert") and len(around.args) > 1
    ):
        other = around.args[1] if around.args[0] is call else around.args[0]
    try:
        return literal(other)
    except ValueError:
        return UNKNOWN


def _row(row: ast.Tuple) -> Case | None:
    """A row of a table of cases: a function, its arguments, and perhaps what it should give."""
    name = last(row.elts[0])
    try:
        arguments = literal(row.elts[1])
    except ValueError:
        return None
    if not isinstance(arguments, list | tuple):
        return None
    return Case(name, tuple(arguments))

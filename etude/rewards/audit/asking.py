"""What the tests are, and what they do with the project's functions.

Owns `is_test` and `tests_of`. The visible tests are read, and the verifier's where it holds modules. Runs nothing.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

from etude.records import Task
from etude.rewards.audit.cases import hidden_modules
from etude.rewards.audit.code import Module, last
from etude.rewards.audit.trace import Tests

_TEST_NAME = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|tests?|check|conftest)\.py$|(^|/)tests?/")


def is_test(path: str, task: Task) -> bool:
    """Whether a file judges the project rather than being it."""
    return path in task.provenance.get("protected", ()) or _TEST_NAME.search(path) is not None


def tests_of(task: Task, given: Mapping[str, str]) -> Tests:
    """Of the visible tests, by path and text, and of the hidden ones."""
    visible = [module for path, text in given.items() if (module := Module.parse(path, text))]
    modules = [*visible, *hidden_modules(task)]
    return Tests(
        stems=frozenset(_stem(path) for path in given if path.endswith(".py")),
        imported=frozenset(name for module in visible for name in module.imported),
        called=frozenset(last(call.func) for module in modules for _, call in module.calls()),
        checks=frozenset(name for module in modules for name in _checks(module)),
        runs=frozenset(name for module in modules for name in _runs(module)),
        surrounds=frozenset(name for module in modules for name in _surrounds(module)),
    )


def _stem(path: str) -> str:
    return posixpath.basename(path).removesuffix(".py")


def assertion(node: ast.AST) -> bool:
    """Whether it fails where something is not as it was to be."""
    raised = node.exc if isinstance(node, ast.Raise) else node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (raised is not None and "assert" in ast.unparse(raised).lower())


def asserts(nodes: Iterable[ast.AST]) -> bool:
    """Whether there is an assertion in any of these trees."""
    return any(assertion(each) for node in nodes for each in ast.walk(node))


def _checks(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield last(node.value.func)


def _runs(module: Module) -> Iterator[str]:
    """By what calls, decorates or is derived from."""
    own = {each.name for each in module.nodes if isinstance(each, ast.FunctionDef | ast.ClassDef) and asserts([each])}
    for node in module.nodes:
        if isinstance(node, ast.Call):
            given = [*node.args, *(each.value for each in node.keywords)]
            if any(last(each) in own or (isinstance(each, ast.Lambda) and asserts([each])) for each in given):
                yield last(node.func)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in own:
            around = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
            yield from (last(each.func if isinstance(each, ast.Call) else each) for each in around)


def _surrounds(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.With | ast.AsyncWith) and asserts(node.body):
            for item in node.items:
                used = item.context_expr
                yield last(used.func if isinstance(used, ast.Call) else used)

"""Breaks real functions: one small change of one line, of the kinds the generated ladder knows.

Owns `mutations_of`, which lists the changes a function allows, and `mends_of`, which lists those that could take one
back. Templates carry the ladder's names (`grammar.BUGS`), so that the hold-out rule speaks of both. Changes are made to
the text at the place the syntax tree names: all else, layout and comments included, stays as its author wrote it. Runs
nothing; whether a change is a bug, the tests say.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from etude import syntax

_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.Div: ("/", "*"),
}  # fmt: skip
_BOUNDARIES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
}  # fmt: skip
_UNDONE = ((ast.Add, "+", "*"), (ast.Mult, "*", "//"), (ast.Mult, "*", "/"), (ast.FloorDiv, "//", "%"))
"""What made an operator of another, read backwards, where `_OPERATORS` does not have that too."""
_OPPOSITES: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">"), ast.LtE: ("<=", ">="), ast.Gt: (">", "<"), ast.GtE: (">=", "<="), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
_BUILTINS = (("max", "min"), ("all", "any"), ("sum", "len"))
_METHODS = (
    ("upper", "lower"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("append", "appendleft"), ("pop", "popleft"),
    ("find", "rfind"), ("split", "rsplit"), ("keys", "values"),
)  # fmt: skip
_PARTNER = {a: b for pair in (*_BUILTINS, *_METHODS) for a, b in (pair, pair[::-1])}

Position = tuple[int, int]
"""Line (from 1) and column (from 0)."""
Edit = tuple[str, Position, Position, str]
"""The template, from where to where, and what comes there."""


@dataclass(frozen=True)
class Mutation:
    """Line number `line` (from 1) of a file, `right` before and `wrong` after the change; of a mend it is the other way
    round, as far as anybody knows."""

    bug: str
    line: int
    right: str
    wrong: str

    def apply(self, text: str) -> str:
        lines = text.split("\n")
        assert lines[self.line - 1] == self.right
        lines[self.line - 1] = self.wrong
        return "\n".join(lines)


def mutations_of(text: str, function: str) -> list[Mutation]:
    """Every change of one line of the function (or method, as "Class.method") that can be told apart in its file."""
    return _distinct_ones(text, function, _edits)


def mends_of(text: str, function: str) -> list[Mutation]:
    """Every change of one line that could take back one of `mutations_of`; in the function as it stands, where nobody
    knows what was right. A mutation often is the mend of another; some mends are no mutation.
    """
    return _distinct_ones(text, function, lambda node, lines: chain(_edits(node, lines), _undoing(node, lines)))


def _distinct_ones(
    text: str, function: str, edits: Callable[[ast.FunctionDef, list[str]], Iterator[Edit]]
) -> list[Mutation]:
    node = _find(syntax.parse(text), function)
    lines = text.split("\n")
    found: dict[tuple[int, str], Mutation] = {}
    for bug, start, end, replacement in edits(node, lines):
        right = lines[start[0] - 1]
        if start[0] != end[0] or not right.isascii() or right.lstrip().startswith((">>>", "#")):
            continue
        wrong = right[: start[1]] + replacement + right[end[1] :]
        mutation = Mutation(bug, start[0], right, wrong)
        if _distinct(lines, mutation) and _parses(mutation.apply(text)):
            found.setdefault((start[0], wrong), mutation)
    return list(found.values())


def _edits(function: ast.FunctionDef, lines: list[str]) -> Iterator[Edit]:
    parameters = [argument.arg for argument in function.args.posonlyargs + function.args.args if argument.arg != "self"]
    for statement in function.body:
        for node in ast.walk(statement):
            match node:
                case ast.BinOp():
                    yield from _of_operation(node, lines)
                case ast.AugAssign(op=ast.Add() | ast.Sub()):
                    old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
                    yield from _between("sign", _end(node.target), _start(node.value), old, new, lines)
                case ast.Compare(ops=[operator], comparators=[right]):
                    for bug, table in (("boundary", _BOUNDARIES), ("opposite", _OPPOSITES)):
                        if type(operator) in table:
                            yield from _between(bug, _end(node.left), _start(right), *table[type(operator)], lines)
                case ast.BoolOp(values=[left, right]):
                    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                    yield from _between("connective", _end(left), _start(right), old, new, lines)
                case ast.Assign(value=ast.Constant(value=0 | 1 as value)) if value is not True and value is not False:
                    yield "start", _start(node.value), _end(node.value), str(1 - value)
                case ast.Constant():
                    yield from _of_constant(node)
                case ast.Call():
                    yield from _of_call(node, lines)
                case ast.Subscript():
                    yield from _of_subscript(node)
                case ast.UnaryOp(op=ast.Not()):
                    yield "negation", _start(node), _start(node.operand), ""
                case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                    if isinstance(test, ast.Name | ast.Call | ast.Attribute):
                        yield "negation", _start(test), _start(test), "not "
                case ast.Name(ctx=ast.Load()) if node.id in parameters:
                    for other in parameters:
                        if other != node.id:
                            yield "variable", _start(node), _end(node), other


def _undoing(function: ast.FunctionDef, lines: list[str]) -> Iterator[Edit]:
    """Mends that are no mutation: `not` comes back where conditions stand, and operators that others were made of."""
    for statement in function.body:
        for node in ast.walk(statement):
            match node:
                case ast.BinOp():
                    for kind, old, new in _UNDONE:
                        if isinstance(node.op, kind):
                            yield from _between("operator", _end(node.left), _start(node.right), old, new, lines)
                case ast.BoolOp(values=conditions) | ast.comprehension(ifs=conditions):
                    yield from (("negation", _start(each), _start(each), "not ") for each in conditions)
                case ast.Return(value=ast.Name() | ast.Call() | ast.Attribute() as value):
                    yield "negation", _start(value), _start(value), "not "


def _of_operation(node: ast.BinOp, lines: list[str]) -> Iterator[Edit]:
    formatting = isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant)
    if type(node.op) in _OPERATORS and not formatting:
        yield from _between("operator", _end(node.left), _start(node.right), *_OPERATORS[type(node.op)], lines)
    if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod) and not formatting:
        yield from _exchanged(node.left, node.right, lines)


def _of_constant(node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield "direction", _start(node), _end(node), str(not node.value)
    elif isinstance(node.value, int) and 0 <= node.value < 100:
        for value in {node.value + 1, max(node.value - 1, 0)} - {node.value}:
            yield "constant", _start(node), _end(node), str(value)


def _of_call(node: ast.Call, lines: list[str]) -> Iterator[Edit]:
    function = node.func
    if isinstance(function, ast.Name) and any(function.id in pair for pair in _BUILTINS):
        yield "builtin", _start(function), _end(function), _PARTNER[function.id]
    if isinstance(function, ast.Attribute) and any(function.attr in pair for pair in _METHODS):
        line, column = _end(function)
        yield "method", (line, column - len(function.attr)), (line, column), _PARTNER[function.attr]
    plain = [item for item in node.args if isinstance(item, ast.Name | ast.Attribute | ast.Constant | ast.Call)]
    if len(node.args) >= 2 and plain[:2] == node.args[:2]:
        yield from _exchanged(node.args[0], node.args[1], lines)


def _of_subscript(node: ast.Subscript) -> Iterator[Edit]:
    match node.slice:
        case ast.Constant(value=0):
            yield "end", _start(node.slice), _end(node.slice), "-1"
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            yield "end", _start(node.slice), _end(node.slice), "0"
        case ast.Slice(lower=None, upper=ast.Name() | ast.Constant() as bound, step=None):
            yield "side", _start(node.slice), _end(node.slice), f"{ast.unparse(bound)}:"
        case ast.Slice(lower=ast.Name() | ast.Constant() as bound, upper=None, step=None):
            yield "side", _start(node.slice), _end(node.slice), f":{ast.unparse(bound)}"


def _exchanged(left: ast.expr, right: ast.expr, lines: list[str]) -> Iterator[Edit]:
    """Two operands or arguments, each in the other's place."""
    (line, start), (_, middle), (_, again), (last, end) = _start(left), _end(left), _start(right), _end(right)
    if line == last and middle <= again:
        text = lines[line - 1]
        if text[start:middle] != text[again:end]:
            yield "swap", (line, start), (line, end), text[again:end] + text[middle:again] + text[start:middle]


def _between(bug: str, start: Position, end: Position, old: str, new: str, lines: list[str]) -> Iterator[Edit]:
    """An operator has no place of its own in the tree: it is what stands between its operands, brackets aside."""
    if start[0] == end[0]:
        text = lines[start[0] - 1][start[1] : end[1]]
        if text.strip(" ()") == old:
            at = start[1] + text.index(old)
            yield bug, (start[0], at), (start[0], at + len(old)), new


def _find(tree: ast.Module, name: str) -> ast.FunctionDef:
    scope: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for part in name.split("."):
        scope = next(
            item for item in scope.body if isinstance(item, ast.FunctionDef | ast.ClassDef) and item.name == part
        )
    assert isinstance(scope, ast.FunctionDef), f"{name} is no function"
    return scope


def _distinct(lines: list[str], mutation: Mutation) -> bool:
    """The wrong line and the right one occur once, so that an edit can name the line by its text."""
    stripped = [line.strip() for line in lines]
    return stripped.count(mutation.right.strip()) == 1 and mutation.wrong.strip() not in "\n".join(stripped)


def _parses(text: str) -> bool:
    try:
        syntax.parse(text)
    except SyntaxError:
        return False
    return True


def _start(node: ast.expr) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> Position:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset

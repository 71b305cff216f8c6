"""Takes the expected values out of tests, so that the judge alone has them and the code under test never sees them.

    assert total(items) == 12              ──►  assert _equal_(7, (total(items)))          7: 12
    self.assertEqual(total(items), wanted) ──►  self.assertTrue(_same_(8, (total(items)), (wanted)))
    wanted = {"sum": 12}                   ──►  wanted = (None)     where `wanted` is only compared with
    for x, wanted in [(1, 7), (2, 9)]:     ──►  for x, wanted in [(1, 9), (2, 10)]:             9: 7, 10: 9
        assert total(x) == wanted          ──►      assert _equal_(wanted, (total(x)))

What a test is parametrized with goes the same way, where pytest does not name the test after it: lists, sets and dicts,
and all values of tests that have names of their own.

Owns `split_expectations`. What the calls do is said in `inside.observe`, what becomes of their answers in
`inside.guard`. Lines keep their numbers, but for those after a test that ends in a block. Left as it is: what stands in
a `try`, where errors are waited for, under `or` and `not`, and every assertion but equality with a value, None, True or
False. Runs nothing.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude import syntax

_EQUAL = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
    "assertMultiLineEqual",
}  # fmt: skip
_ITEMS = {"assertSequenceEqual": "items", "assertCountEqual": "count"}
_CLOSE = {"assertAlmostEqual", "assertAlmostEquals"}
_WAITS = re.compile(r"raises|suppress|fails|AssertionError", re.IGNORECASE)
"""In a `with`, a decorator or a function that counts on errors."""
_LOOSE = {"approx", "ANY"}
"""Names of what equals more than one value; so does what a test module makes itself with an `__eq__`."""
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, type(None))
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SplitTest:
    """A test module without what it wants. `asked`: by place, how a value is compared there, and with what."""

    text: bytes
    asked: Mapping[int, tuple[Any, ...]]
    next: int
    """The first place that is free."""
    passed: Mapping[str, Sequence[int]]
    """By a function's dotted name, the places that it passes whenever it runs to its end."""
    bases: Mapping[str, Sequence[str]]

    def passed_by(self, names: Sequence[str]) -> list[int]:
        """The places that a test passes; it may stand in a class that its own class is made of."""
        if len(names) == 2 and ".".join(names) not in self.passed:
            inherited = (self.passed_by([base, names[1]]) for base in self.bases.get(names[0], ()) if base != names[0])
            return next((places for places in inherited if places), [])
        return list(self.passed.get(".".join(names), ()))


def split_expectations(source: bytes, first: int = 0) -> SplitTest:
    """The module with places counted from `first`; what cannot be parsed is left as it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = syntax.parse(source)
        source.decode()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return SplitTest(source, {}, first, {}, {})
    work = _Work(source, first)
    work.module(tree)
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return SplitTest(work.text(), work.asked, work.next, work.passed, bases)


@dataclass
class _Work:
    source: bytes
    next: int
    asked: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    passed: dict[str, list[int]] = field(default_factory=dict)
    edits: list[tuple[int, int, bytes]] = field(default_factory=list)
    names: dict[str, ast.expr] = field(default_factory=dict)
    columns: dict[str, _Column] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.starts, self.loose = [0], set(_LOOSE)
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def module(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(getattr(each, "name", "") == "__eq__" for each in node.body):
                self.loose.add(node.name)
        for statement in tree.body:
            if isinstance(statement, Function):
                self.function(statement, statement.name)
            elif isinstance(statement, ast.ClassDef):
                for method in statement.body:
                    if isinstance(method, Function):
                        self.function(method, f"{statement.name}.{method.name}")

    def function(self, function: Function, name: str) -> None:
        whole = ast.unparse(function)
        if "AssertionError" in whole or any(_WAITS.search(ast.unparse(each)) for each in function.decorator_list):
            return
        straight = not any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in _own(function))
        places = [place for place, always in self.named(function) if always]
        if straight and function.name.startswith("test"):
            self.passed[name] = [*places, *self.end(function)]

    def named(self, function: Function) -> list[tuple[int, bool]]:
        """The block of a function, without the values of its names that are compared with and nothing else."""
        names = _wanted_names(function)
        while True:
            self.names = {name: value for name, (value, _) in names.items() if isinstance(value, ast.expr)}
            self.columns = {name: value for name, (value, _) in names.items() if isinstance(value, _Column)}
            self.uses = Counter()
            before = self.next, dict(self.asked), list(self.edits)
            places = list(self.block(function.body, True))
            used_otherwise = [name for name, (_, loads) in names.items() if self.uses[name] != loads]
            if not used_otherwise:
                break
            self.next, self.asked, self.edits = before
            names = {name: names[name] for name in names.keys() - used_otherwise}
        for value in self.names.values():
            self.replace(value, b"None")
        for column in self.columns.values():
            for cell in column.cells:
                self.asked[self.next] = ("equal", _literal(cell)[1])
                self.replace(cell, b"%d" % self.next if column.plain else b"[%d]" % self.next)
                self.next += 1
        self.names, self.columns = {}, {}
        return places

    def replace(self, value: ast.expr, text: bytes) -> None:
        start, end = self.span(value)
        self.edits.append((start, end, b"(%s%s)" % (text, b"\n" * self.source[start:end].count(b"\n"))))

    def block(self, statements: Sequence[ast.stmt], always: bool) -> Iterator[tuple[int, bool]]:
        """(place, whether it is passed whenever the function runs to its end)"""
        for statement in statements:
            match statement:
                case ast.Assert():
                    yield from ((place, always) for place in self.condition(statement.test))
                case ast.Expr(value=ast.Call() as call):
                    yield from ((place, always) for place in self.method(call))
                case ast.With(items=items, body=body):
                    if not any(_WAITS.search(ast.unparse(item)) for item in items):
                        yield from self.block(body, always)
                case ast.For() | ast.While() | ast.If():
                    yield from self.block([*statement.body, *statement.orelse], False)
                case ast.FunctionDef(body=body) | ast.Try(finalbody=body, handlers=[]):
                    yield from self.block(body, False)

    # --- one assertion ------------------------------------------------------------------------------------------------

    def condition(self, test: ast.expr) -> Iterator[int]:
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                for value in values:
                    yield from self.condition(value)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                yield from self.compared(test, left, right, b"", b"")
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=value)]) if _single(value):
                yield self.put(test, "is", ("is", value), left)

    def method(self, call: ast.Call) -> Iterator[int]:
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name) or _starred(call):
            return
        told = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg != "msg"}
        true = f"{call.func.value.id}.assertTrue(".encode()
        match call.func.attr, call.args:
            case name, [one, other, *more] if name in _CLOSE and len(more) + len(told) < 2:
                yield from self.close(call, one, other, dict.fromkeys(["places"][: len(more)], more and more[0]) | told)
            case _ if told:
                return
            case name, [one, other, *more] if name in _EQUAL and len(more) < 2:
                yield from self.compared(call, one, other, true, b")")
            case name, [one, other, *more] if name in _ITEMS and len(more) < 2:
                for value, wanted in ((one, other), (other, one)):
                    known, literal = self.literal(wanted)
                    if known and isinstance(
                        literal, list | tuple | (set | dict if name == "assertCountEqual" else tuple)
                    ):
                        asked = _ITEMS[name], list(literal)
                        yield self.put(call, _ITEMS[name], asked, value, before=true, after=b")")
                        return
            case "assertIs", [one, ast.Constant(value=value)] if _single(value):
                yield self.put(call, "is", ("is", value), one, before=true, after=b")")
            case "assertIsNone", [one]:
                yield self.put(call, "is", ("is", None), one, before=true, after=b")")

    def close(self, call: ast.Call, one: ast.expr, other: ast.expr, told: Mapping[Any, Any]) -> Iterator[int]:
        """As unittest has it: the difference, rounded to 7 places, is 0, or it is no more than `delta`."""
        (name, node), *_ = *told.items(), ("places", ast.Constant(7))
        known, limit = _literal(node)
        if not known or type(limit) not in {"places": (int,), "delta": (int, float)}.get(name, ()):
            return
        absolute = limit if name == "delta" else 0.5 * 10.0**-limit * (1 + 1e-9)
        for value, wanted in ((one, other), (other, one)):
            known, literal = self.literal(wanted)
            if known and type(literal) in (int, float, complex):
                true = f"{ast.unparse(call.func).rpartition('.')[0]}.assertTrue(".encode()
                yield self.put(call, "near", ("near", literal, 0.0, absolute), value, before=true, after=b")")
                return

    def literal(self, node: ast.expr) -> tuple[bool, Any]:
        """Whether its value is known, also by a name, and which."""
        if isinstance(node, ast.Name) and node.id in self.names:
            self.uses[node.id] += 1
            node = self.names[node.id]
        return _literal(node)

    def compared(self, whole: ast.expr, one: ast.expr, other: ast.expr, before: bytes, after: bytes) -> Iterator[int]:
        for value, wanted in ((one, other), (other, one)):
            if isinstance(value, ast.Constant):
                continue
            if (asked := _near(wanted)) is None:
                asked = _near(self.approximated(wanted))
            if asked is not None:
                yield self.put(whole, "near", asked, value, before=before, after=after)
                return
            if isinstance(wanted, ast.Name) and wanted.id in self.columns:
                self.uses[wanted.id] += 1
                place = wanted.id if self.columns[wanted.id].plain else f"{wanted.id}[0]"
                self.put(whole, "equal", None, value, before=before, after=after, place=place)
                return
            known, literal = self.literal(wanted)
            if known:
                yield self.put(whole, "equal", ("equal", literal), value, before=before, after=after)
                return
        if not self.loose & {_name(node) for node in ast.walk(whole)}:
            yield self.put(whole, "same", None, one, other, before=before, after=after)

    def approximated(self, node: ast.expr) -> ast.expr:
        """`approx(wanted)` with what the name stands for."""
        match node:
            case ast.Call(func=func, args=[ast.Name(id=name)], keywords=keywords) if name in self.names:
                told = ast.Call(func, [self.names[name]], keywords)
                self.uses[name] += _near(told) is not None
                return told
        return node

    def end(self, function: Function) -> Iterator[int]:
        last = function.body[-1]
        place, end = self.next, self.at(last.end_lineno, last.end_col_offset)
        if isinstance(last, ast.Expr | ast.Assert | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Pass | ast.Delete):
            self.edits.append((end, end, b"; _end_(%d)" % place))
        elif function.body[0].lineno > function.lineno:
            line = self.source[end : self.source.find(b"\n", end) % (len(self.source) + 1)]
            end += len(line)
            indent = self.source[self.starts[last.lineno - 1] :][: last.col_offset]
            if indent.strip():
                return
            self.edits.append((end, end, b"\n%s_end_(%d)" % (indent, place)))
        else:
            return
        self.next, self.asked[place] = self.next + 1, ("end",)
        yield place

    # --- text ---------------------------------------------------------------------------------------------------------

    def put(
        self, whole: ast.expr, how: str, asked: tuple[Any, ...] | None, *values: ast.expr,
        before: bytes = b"", after: bytes = b"", place: int | str = "",
    ) -> int:  # fmt: skip
        """A call in the place of an expression, with as many line ends as were there; `place` where a name has it."""
        site = self.next
        if place == "":
            place, self.next = site, site + 1
        if asked is not None:
            self.asked[site] = asked
        start, end = self.span(whole)
        pieces = [self.source[slice(*self.span(value))] for value in values]
        lines = self.source[start:end].count(b"\n") - sum(piece.count(b"\n") for piece in pieces)
        inner = b", ".join(b"(%s)" % piece for piece in pieces)
        self.edits.append(
            (
                start,
                end,
                b"%s_%s_(%s, %s%s)%s" % (before, how.encode(), f"{place}".encode(), inner, b"\n" * lines, after),
            )
        )
        return site

    def span(self, node: ast.expr) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def at(self, line: int | None, column: int | None) -> int:
        return self.starts[(line or 1) - 1] + (column or 0)

    def text(self) -> bytes:
        pieces, done = [], 0
        for start, end, text in sorted(self.edits):
            pieces += [self.source[done:start], text]
            done = end
        return b"".join([*pieces, self.source[done:]])


def _own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, but for those of functions and classes in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


@dataclass(frozen=True)
class _Column:
    """What a name is given, row for row. `plain`: a place can stand there as it is; else it stands in a list, as pytest
    names no test after one."""

    cells: Sequence[ast.expr]
    plain: bool


def _wanted_names(function: Function) -> dict[str, tuple[ast.expr | _Column, int]]:
    """Names that are given a literal, once and for all, or one a row: that, and how often they are read."""
    values: dict[str, ast.expr] = {}
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _literal(value)[0]:
                values[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _literal(value)[0]:
                values[name] = value
    read, bound, messages = Counter(), Counter(), set(_messages(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read[node.id] += node not in messages
        elif not isinstance(node, ast.Constant | ast.Attribute | ast.keyword):
            bound.update(_strings(node))
    if {"locals", "eval", "exec", "vars"} & read.keys():
        return {}
    whole = {name: value for name, value in values.items() if read[name] == bound[name] == 1}
    found = {**values, **dict(_parametrized(function)), **dict(_looped(function, whole))}
    return {name: (value, read[name]) for name, value in found.items() if bound[name] == 1 and read[name]}


def _looped(function: Function, named: Mapping[str, ast.expr]) -> Iterator[tuple[str, _Column]]:
    """The columns of `for x, wanted in [(1, 2), …]`; the list may have a name that is read there alone."""
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            rows = named.get(node.iter.id) if isinstance(node.iter, ast.Name) else node.iter
            names = [each.id if isinstance(each, ast.Name) else "" for each in node.target.elts]
            for name, cells, _ in _table(names, rows):
                yield name, _Column(cells, True)


def _parametrized(function: Function) -> Iterator[tuple[str, _Column]]:
    """The columns of `@pytest.mark.parametrize("x, wanted", [(1, [2]), …])` that no test's name shows."""
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, rows], keywords=told):
                known, names = _literal(names)
                options = {keyword.arg: keyword.value for keyword in told}
                named = isinstance(options.get("ids"), ast.List)
                if not known or options.keys() - {"ids"}:
                    continue
                names = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
                for name, cells, titled in _table(names, rows) if len(names) > 1 else ():
                    if (
                        named
                        or titled
                        or all(isinstance(each, ast.List | ast.Dict | ast.Set | ast.Tuple) for each in cells)
                    ):
                        yield name, _Column(cells, False)


def _table(names: Sequence[str], rows: ast.expr | None) -> Iterator[tuple[str, list[ast.expr], bool]]:
    """The columns of literals in a list of rows, and whether each row has an `id`."""
    if not isinstance(rows, ast.List | ast.Tuple) or not rows.elts:
        return
    cells, titled = [], True
    for row in rows.elts:
        match row:
            case ast.Tuple(elts=given) | ast.List(elts=given):
                titled = False
            case ast.Call(func=ast.Attribute(attr="param"), args=given, keywords=told):
                titled = titled and any(each.arg == "id" and isinstance(each.value, ast.Constant) for each in told)
            case _:
                return
        if len(given) != len(names):
            return
        cells.append(given)
    for name, column in zip(names, zip(*cells, strict=True), strict=True):
        if name and all(_literal(each)[0] for each in column):
            yield name, list(column), titled


def _messages(function: Function) -> Iterator[ast.AST]:
    """What says why an assertion failed; none that was taken out does."""
    for node in ast.walk(function):
        match node:
            case ast.Assert(msg=ast.expr() as message):
                yield from ast.walk(message)
            case ast.Call(func=ast.Attribute(attr="subTest")):
                yield from (each for each in [*node.args, *(told.value for told in node.keywords)])
            case ast.Call(func=ast.Attribute(attr=name), args=[_, _, *more], keywords=told) if name in {
                *_EQUAL, *_ITEMS, *_CLOSE,
            }:  # fmt: skip
                for message in [*more, *(each.value for each in told if each.arg == "msg")]:
                    yield from ast.walk(message)


def _strings(node: ast.AST) -> Iterator[str]:
    """The names that stand in a node itself."""
    for _, value in ast.iter_fields(node):
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _single(value: Any) -> bool:
    return value is None or value is True or value is False


def _starred(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Starred) for each in call.args)


def _literal(node: ast.expr) -> tuple[bool, Any]:
    """Whether it is a value that can be written down, and which."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
    return _writable(value), value


def _writable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_writable(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set):
        return all(map(_writable, value))
    return isinstance(value, _PLAIN) and not (isinstance(value, float) and repr(value) == "inf")


def _near(node: ast.expr) -> tuple[Any, ...] | None:
    """What `approx(literal, rel=…, abs=…)` asks for."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "approx" or len(node.args) != 1:
        return None
    known, value = _literal(node.args[0])
    given = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    if not known or not given.keys() <= {"rel", "abs"} or not all(known for known, _ in given.values()):
        return None
    absolute = given.get("abs", (True, None))[1]
    relative = given.get("rel", (True, None if absolute is None else 0.0))[1]
    return "near", value, 1e-6 if relative is None else relative, 1e-12 if absolute is None else absolute

"""Whether a value is one that a function was handed: by the tests, or by who else calls it from outside.

Owns `Handed`. To read the file or load the module whose name one is given is what loaders are for; to find one for
itself is a power. A parameter is handed where the tests call the function by name, or where every call that the project
makes hands one on; what is set to anything else, looked for, or made of more than a plain part of a name, is not.
Names are compared as words. Runs nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from etude.rewards.audit.code import Function, Module, folded, last
from etude.rewards.audit.trace import Tests

_KEEPS = {
    "resolve", "absolute", "expanduser", "with_suffix", "joinpath", "strip", "lower", "glob", "rglob", "iterdir", "get",
    "split", "splitlines", "replace", "removeprefix", "removesuffix", "partition", "rpartition", "rsplit", "items",
}  # fmt: skip
"""Methods whose value lies where their object does, or is a part of it."""
_MAKES = {
    "Path", "pathlib.Path", "pathlib.PurePath", "str", "os.fspath", "os.path.join", "os.path.expanduser",
    "os.path.abspath", "os.path.realpath", "os.path.normpath", "sorted", "list", "tuple", "os.listdir", "os.scandir",
}  # fmt: skip
_VALUES = (
    ast.Assign, ast.NamedExpr, ast.keyword, ast.Attribute, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Return,
    ast.Starred, ast.IfExp, ast.BoolOp, ast.Yield, ast.Await, ast.Lambda,
)  # fmt: skip
"""Where a function's name is a value, and no annotation."""
_FAR = 8
"""Hands that a value may go through; who would follow it further."""
_Key = tuple[int, str]


@dataclass(frozen=True)
class Handed:
    """Asks one project, whose other changed modules are `others`. `plain` says which constants may be handed on."""

    tests: Tests
    others: Sequence[Module] = ()
    plain: Callable[[str], bool] = lambda text: False

    def __call__(self, module: Module, node: ast.AST) -> bool:
        return self._value(module, node, frozenset())

    def _value(self, module: Module, node: ast.AST, seen: frozenset[_Key]) -> bool:
        match node:
            case ast.Name(id=name):
                return self._variable(module, node, name, seen)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._kept(module, node, name, seen)
            case ast.Attribute(value=value, attr="name" | "stem" | "path"):
                return self._value(module, value, seen)
            case ast.Subscript(value=value, slice=ast.Constant()):
                return self._value(module, value, seen)
            case ast.BinOp(left=left, right=right, op=ast.Div() | ast.Add()):
                return self._value(module, left, seen) and self._part(module, right, seen)
            case ast.BoolOp(values=values):
                return all(self._part(module, each, seen) for each in values) and self._value(module, values[0], seen)
            case ast.JoinedStr(values=values):
                inner = [each.value for each in values if isinstance(each, ast.FormattedValue)]
                whole = [each for each in values if not isinstance(each, ast.FormattedValue)]
                return bool(inner) and all(self._part(module, each, seen) for each in [*inner, *whole])
            case ast.Call(func=func, args=[first, *rest]) if module.name(func) in _MAKES:
                return self._value(module, first, seen) and all(self._part(module, each, seen) for each in rest)
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args) if attr in _KEEPS:
                return self._value(module, value, seen) and all(self._part(module, each, seen) for each in args)
        return False

    def _part(self, module: Module, node: ast.AST, seen: frozenset[_Key]) -> bool:
        """A piece of a name that leads nowhere else."""
        text = folded(node)
        if text is None and isinstance(node, ast.Constant):
            return True
        return self._value(module, node, seen) if text is None else not text.startswith(("/", "~")) and ".." not in text

    def _variable(self, module: Module, node: ast.AST, name: str, seen: frozenset[_Key]) -> bool:
        """A parameter, and what is made of one."""
        around = [each for each in module.above(node) if isinstance(each, Function)]
        holder = next((each for each in around if name in _parameters(each)), None)
        inner = around[0] if around else None
        if len(seen) > _FAR:
            return False
        if inner is None or (key := (id(holder or inner), name)) in seen:
            return inner is not None
        seen |= {key}
        values = [*_set_to(holder or inner, name)]
        if holder is None and not values:
            return False
        made = all(value is not None and self._value(module, value, seen) for value in values)
        return made and (holder is None or self._parameter(module, holder, name, seen))

    def _parameter(self, module: Module, function: Function, name: str, seen: frozenset[_Key]) -> bool:
        if isinstance(function, ast.Lambda):
            return False
        above = module.parents.get(function)
        known = above.name if function.name == "__init__" and isinstance(above, ast.ClassDef) else function.name
        own = [*function.args.posonlyargs, *function.args.args]
        names = [each.arg for each in own][isinstance(above, ast.ClassDef) :]
        place = names.index(name) if name in names else None
        calls = [*self._calls(module, known)]
        handed = [_argument(call, place, name) for _, call in calls]
        defaults = zip(reversed(own), reversed(function.args.defaults), strict=False)
        default = next((each for parameter, each in defaults if parameter.arg == name), None)
        return (
            (known in self.tests.called or bool(calls))
            and (default is None or isinstance(default, ast.Constant))
            and not any(known in each.once(_passed_on, each.tree) for each in (module, *self.others))
            and all(
                value is None or self._constant(value) or self._value(where, value, seen)
                for (where, _), value in zip(calls, handed, strict=True)
            )
        )

    def _constant(self, node: ast.AST) -> bool:
        text = folded(node)
        return text is not None and self.plain(text)

    def _calls(self, module: Module, name: str) -> Iterator[tuple[Module, ast.Call]]:
        """Calls by that name, whoever is meant; those of the standard library's modules left out."""
        for each in (module, *self.others):
            for dotted, call in each.calls():
                root = dotted.partition(".")[0]
                standard = "." in dotted and root in each.imported and root in sys.stdlib_module_names
                called = name in (last(call.func), dotted.rpartition(".")[2])
                if called and not standard and not each.run_as_script(call):
                    yield each, call

    def _kept(self, module: Module, node: ast.AST, name: str, seen: frozenset[_Key]) -> bool:
        """`self.path`, where whatever sets it was handed it."""
        values = [
            each.value
            for each in module.nodes
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign)
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            if isinstance(target, ast.Attribute) and target.attr == name
        ]
        return bool(values) and all(each is not None and self._value(module, each, seen) for each in values)


def _parameters(function: Function) -> set[str]:
    asked = function.args
    return {each.arg for each in (*asked.posonlyargs, *asked.args, *asked.kwonlyargs)}


def _set_to(function: ast.AST, name: str) -> Iterator[ast.expr | None]:
    """What a name is given in a function; None for what cannot be said."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from [value] * any(_stores(each, name) for each in targets)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield from [value] * _stores(target, name)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield from [value] * _stores(target, name)
            case ast.AugAssign(target=target) | ast.withitem(optional_vars=ast.expr() as target):
                yield from [None] * _stores(target, name)
            case ast.Global(names=names) | ast.Nonlocal(names=names) if name in names:
                yield None


def _stores(target: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store) for each in ast.walk(target)
    )


def _argument(call: ast.Call, place: int | None, name: str) -> ast.AST | None:
    """What a call hands to a parameter; None where it leaves that out. What is unpacked could be anything."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(each.arg is None for each in call.keywords):
        return call
    named = next((each.value for each in call.keywords if each.arg == name), None)
    return call.args[place] if named is None and place is not None and place < len(call.args) else named


def _passed_on(module: Module, tree: ast.AST) -> set[str]:
    """Names that are handed on as values: of a function among them nobody knows who calls it with what."""
    found = set()
    for node in module.nodes:
        if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        parent = module.parents.get(node)
        if isinstance(parent, ast.Call):
            given = parent.func is not node and module.name(parent.func) not in ("isinstance", "issubclass", "super")
        else:
            given = isinstance(parent, _VALUES)
        if given:
            found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return found

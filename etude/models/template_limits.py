"""Bounds on what a stranger's template may do: how long it works, and how large its values and its text become.

Owns `BoundedEnvironment`, Jinja's sandbox in which everything is paid for out of one budget, and `budget`, which gives
it. Steps are counted, never seconds, so that a template does the same on every machine. A round of a loop, a call, a
filter and an operator cost one step, and more by the size of what they handle; a value that grows beyond `SIZE` is
refused, and so is what could grow at once by a number that it is given. Knows nothing of messages.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

SIZE = 1 << 24
"""Characters of one value; an item of a list counts as `_ITEM` of them."""
STEPS = 300_000
_UNIT, _ITEM, _WIDTH, _BITS = 64, 64, 10_000, 1 << 14
_SHALLOW = frozenset((
    "length", "count", "first", "last", "default", "d", "list", "reverse", "select", "reject", "selectattr",
    "rejectattr", "map", "items", "attr", "safe",
))  # fmt: skip
"""Filters that look at no more than what a value consists of, or nothing until somebody asks."""
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "indent", "tojson", "round"))
_GONE = ("pprint", "urlize", "wordwrap", "xmlattr", "slice", "batch", "random", "sum")
"""Filters that no chat template needs, and that would need bounds of their own."""
_WIDE = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})|\{[^}]*(\{|\d{5})")
"""In a format: a width of five digits, or one that is given with the values."""
_HOLDING = (list, tuple, dict, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_left: ContextVar[list[int]] = ContextVar("steps that a template has left")


class TooMuch(TemplateError):
    """A template has done more than any that renders a conversation."""


@contextmanager
def budget(steps: int) -> Generator[None]:
    """What is rendered in the block has so many steps, together."""
    token = _left.set([steps])
    try:
        yield
    finally:
        _left.reset(token)


def charge(size: int) -> None:
    """Pay for a step that handles so many characters."""
    left = _left.get(None)
    if left is None:  # it is being compiled
        raise TooMuch("a template computes nothing before it is rendered")
    left[0] -= 1 + size // _UNIT
    if left[0] < 0:
        raise TooMuch("it works on without an end in sight; give the checkpoint a simpler template")


def _weight(value: Any) -> int:
    """The characters of a value and of all in it, as often as they would be written."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, bytes | range):
            total += _ITEM * len(each)
        elif isinstance(each, int):
            total += each.bit_length() // 3
            if each.bit_length() > _BITS:
                raise TooMuch("a number has become too large")
        elif isinstance(each, Namespace):
            waiting.append(object.__getattribute__(each, "_Namespace__attrs"))
            total += _ITEM
        elif isinstance(each, _HOLDING):
            parts = [*each, *each.values()] if isinstance(each, dict) else list(each)
            total += _ITEM * len(parts)
            waiting += parts if total <= SIZE else ()
        if total > SIZE:
            raise TooMuch(f"a value has become larger than {SIZE:,} characters; give the checkpoint a simpler template")
    return total


def _paid(value: Any) -> Any:
    charge(_weight(value))
    return value


def _paid_shallow(value: Any) -> Any:
    charge(len(value) if isinstance(value, (str, range, *_HOLDING)) else 0)
    return value


def _growing(name: str, args: tuple[Any, ...]) -> None:
    """Pay for what a filter, or a method of a string, makes of its arguments, where that is more than they are."""
    if name in _PADDING and any(isinstance(each, int) and each > _WIDTH for each in args[1:]):
        raise TooMuch(f"{name} to a width of more than {_WIDTH:,}")
    if name == "replace" and len(args) >= 3 and all(isinstance(each, str) for each in args[:3]):
        found = args[0].count(args[1])
        _paid_size(found * len(args[2]))
    elif name == "join":
        _paid_size(sum(len(each) for each in args if isinstance(each, (str, range, *_HOLDING))) * max(map(_text, args)))
    elif name == "indent":
        width = max((_text(each) or each for each in args[1:] if isinstance(each, int | str)), default=4)
        _paid_size(_text(args[0]) * width)
    elif name in ("format", "%") and isinstance(args[0], str) and _WIDE.search(args[0]):
        raise TooMuch("a format names a width of five digits, or none")


def _text(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def _paid_size(size: int) -> None:
    if size > SIZE:
        raise TooMuch(f"a value would become larger than {SIZE:,} characters; give the checkpoint a simpler template")
    charge(size)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that pays; `wraps` keeps what Jinja gives it first, such as its context."""
    given = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def paying(*args: Any, **named: Any) -> Any:
        if name in _SHALLOW:
            return _paid_shallow(function(*args[:given], _paid_shallow(args[given]), *args[given + 1 :], **named))
        values = (*args[given:], *named.values())
        _paid(values)
        _growing(name, values)
        return _paid(function(*args, **named))

    return paying


@pass_context
def _written(_context: Context, value: Any) -> Any:
    """With the context, although it needs none: so Jinja writes nothing before a template is rendered."""
    return _paid(value)


class _Paying(NodeTransformer):
    """Has the parts of a template pay that ask the environment nothing."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self._body(node)
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const("x"), "etude_paid"), node.test)
        return node

    def _body(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        text = sum(len(each.data) for part in node.body for each in _texts(part))
        node.body = [nodes.ExprStmt(_filter(nodes.Const(text), "etude_round")), *node.body]
        return node

    visit_Macro = visit_CallBlock = _body

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filter(each, "etude_paid") for each in node.nodes]
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.node, nodes.Expr)
        node.node = _filter(node.node, "etude_paid")
        return node

    def visit_With(self, node: nodes.With) -> nodes.Node:
        self.generic_visit(node)
        node.values = [_filter(each, "etude_paid") for each in node.values]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, "etude_paid")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "etude_paid")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _filter(node.node, "etude_shallow")
        return node


def _texts(part: nodes.Node) -> list[nodes.TemplateData]:
    own = [part] if isinstance(part, nodes.TemplateData) else []
    return [*own, *part.find_all(nodes.TemplateData)]


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Renders inside a `budget` only."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=_written, **options)
        for name in _GONE:
            del self.filters[name]
        del self.globals["lipsum"]

    def bound(self) -> None:
        """Has all filters and tests pay, those that were added meanwhile, too."""
        self.filters = {name: _bounded(name, each) for name, each in self.filters.items()}
        self.tests = {name: _bounded(name, each) for name, each in self.tests.items()}
        self.filters |= {"etude_paid": _paid, "etude_shallow": _paid_shallow, "etude_round": _round}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Paying().visit(super()._parse(source, name, filename))
        return tree.set_lineno(1).set_environment(self)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in ("translate", "expandtabs") and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _growing("format", (value.__self__,))
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:  # a template may name a `self`
        owner = getattr(__obj, "__self__", None)
        _paid((*args, *named.values()))
        if isinstance(owner, str):
            values = (owner, *args, *named.values())
            charge(len(owner))
            _growing(__obj.__name__, values)
        return _paid(super().call(__context, __obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _repeated(operator, left, right)
        elif operator == "%":
            _paid((left, right))
            _growing("%", (left,))
        else:
            _paid_shallow(left)
            _paid_shallow(right)
        return super().call_binop(context, operator, left, right)


def _round(text: int) -> None:
    charge(text)


def _repeated(operator: str, left: Any, right: Any) -> None:
    """Pay for what a product or a power will be."""
    weights = _weight(left), _weight(right)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _BITS:
            raise TooMuch("a number has become too large")
        charge(0)
    else:
        times = next((each for each in (left, right) if isinstance(each, int)), 1)
        _paid_size(max(weights) * max(times, 1))

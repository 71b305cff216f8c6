"""Bounds on what a stranger's template may do: how long it works, and how large its values and its text become.

Owns `BoundedEnvironment`, Jinja's sandbox in which everything is paid for out of one budget (`models.template_budget`).
A round of a loop, a call, a filter and an operator cost one step, and more by the size of what they handle; a value
that grows too large is refused, and so is what could grow at once by a number that it is given. Python's own types have
the methods for which `models.template_methods` has a price, and no others. Knows nothing of messages.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from etude.models.template_budget import BITS, HOLDING, TooMuch, charge, paid, paid_shallow, paid_size, weight
from etude.models.template_methods import is_method, pay_format, pay_growth, pay_percent, pay_search

_SHALLOW = frozenset((
    "length", "count", "first", "last", "default", "d", "list", "reverse", "select", "reject", "selectattr",
    "rejectattr", "map", "items", "attr", "safe",
))  # fmt: skip
"""Filters that look at no more than what a value consists of, or nothing until somebody asks."""
_GONE = ("pprint", "urlize", "wordwrap", "xmlattr", "slice", "batch", "random", "sum", "striptags")
"""Filters that no chat template needs, and that would need bounds of their own."""


class _Searched(str):
    """A text in which a template looks for another."""

    def __contains__(self, sought: object) -> bool:
        if isinstance(sought, str):
            pay_search(len(self), len(sought))
        return super().__contains__(sought)  # ty: ignore[invalid-argument-type]


def _searched(value: Any) -> Any:
    return _Searched(paid(value)) if isinstance(value, str) else paid(value)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that pays; `wraps` keeps what Jinja gives it first, such as its context."""
    given = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def paying(*args: Any, **named: Any) -> Any:
        if name in _SHALLOW:
            return paid_shallow(function(*args[:given], paid_shallow(args[given]), *args[given + 1 :], **named))
        paid((*args[given:], *named.values()))
        if name == "join":
            args = (*args[:given], _listed(args[given]), *args[given + 1 :])
        values = _in_order(function, args, named)[given:]
        if name == "format":
            pay_percent(args[given], named or args[given + 1 :])
        elif name == "in" and isinstance(values[1], str):
            pay_search(len(values[1]), len(values[0]) if isinstance(values[0], str) else 0)
        else:
            pay_growth(name, values)
        return paid(function(*args, **named))

    return paying


_signature = functools.cache(inspect.signature)


def _in_order(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments in the order of the parameters, those that were not given too: what they cost is said by place."""
    try:
        bound = _signature(function).bind(*args, **named)
    except ValueError:  # one in C that does not say what it takes, and takes no names
        return (*args, *named.values())
    bound.apply_defaults()
    return (*bound.args, *bound.kwargs.values())


def _listed(value: Any) -> Any:
    """Of what makes its items one by one, how many there are is not known before."""
    return value if isinstance(value, (str, range, *HOLDING)) else paid(list(value))


@pass_context
def _written(_context: Context, value: Any) -> Any:
    """With the context, although it needs none: so Jinja writes nothing before a template is rendered."""
    return paid(value)


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
            operand.expr = _filter(operand.expr, "etude_searched" if operand.op in ("in", "notin") else "etude_paid")
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
        self.filters |= {
            "etude_paid": paid, "etude_searched": _searched, "etude_shallow": paid_shallow, "etude_round": _round,
        }  # fmt: skip

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Paying().visit(super()._parse(source, name, filename))
        return tree.set_lineno(1).set_environment(self)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        listed = is_method(obj, attr)
        if listed is None:  # Jinja's own, such as `loop` and a namespace
            listed = type(obj).__module__.startswith("jinja2.")
        return listed and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def paying(*args: Any, **named: Any) -> str:
            pay_format(value.__self__, (*args, *named.values()))
            return wrapped(*args, **named)

        return paying

    def call(__self, __context: Context, __obj: Any, *args: Any, **named: Any) -> Any:  # a template may name a `self`
        owner = getattr(__obj, "__self__", None)
        paid((*args, *named.values()))
        if isinstance(owner, str) and __obj.__name__ == "join" and args:
            args = (_listed(args[0]), *args[1:])
            pay_growth("join", (args[0], owner))
        elif isinstance(owner, str):
            charge(len(owner))
            pay_growth(__obj.__name__, (owner, *args, *named.values()))
        elif isinstance(owner, list | tuple):  # of which each item is compared
            paid(owner)
        return paid(super().call(__context, __obj, *args, **named))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _repeated(operator, left, right)
        elif operator == "%":
            paid((left, right))
            if isinstance(left, str):
                pay_percent(left, right)
        else:
            paid_shallow(left)
            paid_shallow(right)
        return super().call_binop(context, operator, left, right)


def _round(text: int) -> None:
    charge(text)


def _repeated(operator: str, left: Any, right: Any) -> None:
    """Pay for what a product or a power will be."""
    weights = weight(left), weight(right)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > BITS:
            raise TooMuch("a number has become too large")
        charge(0)
    else:
        times = next((each for each in (left, right) if isinstance(each, int)), 1)
        paid_size(max(weights) * max(times, 1))

"""Part of a child of `guard`: tells the parent what tests see, so that it and not this process judges.

Goes before the program that runs tests (`suite`, `pytests`). `tasks.outside` has put calls of these in the tests:

  - `_equal_(site, value)` in place of `value == literal`: the literal is with the parent alone. A value made of builtin
    types is sent as text. For any other the parent sends the literal among altered ones, in an order that it alone
    knows, and is told which of them the value equals: one that equals everything gives itself away.
  - `_is_(site, value)` in place of `value is None`, and of `True` and `False`; `_near_(site, value)` in place of
    `value == approx(literal)`.
  - `_same_(site, one, other)` in place of `one == other` where both come about here: sent, or tried with altered ones.
  - `_end_(site)` at a test's end: it was run to there.

Builtins are kept as they were before the code under test was loaded, and `Tools` says whether the functions of the test
framework are still what they were then.
"""

import builtins
import sys
from _thread import RLock

TOOLS = ("builtins", "operator", "unittest", "pytest", "_pytest", "pluggy")
_type, _repr, _len, _list, _tuple, _dict, _set, _float = type, repr, len, list, tuple, dict, set, float
_bool, _int, _str, _bytes, _complex, _frozenset, _isinstance, _hash = (
    bool, int, str, bytes, complex, frozenset, isinstance, hash,
)  # fmt: skip
_HASHED = (_int, _float, _str, _bytes, _complex)


class Rich(Exception):
    """A value that is more than builtin types."""


class Observer:
    """What the running test sees, for the parent; `test` is its key, None while none runs that counts."""

    def __init__(self, report, ask, altered):
        self.report, self.ask, self.altered, self.test = report, ask, altered, None
        self.said, self.lock = _set(), RLock()
        for name in ("equal", "is", "near", "same", "end"):
            setattr(builtins, f"_{name}_", getattr(self, name.replace("is", "is_")))
        self.tools = Tools()

    def equal(self, site, value):
        try:
            self.say(site, "= " + _repr(plain(value)))
        except Rich:
            with self.lock:
                if self.test is not None:
                    offered = self.ask(f"@{self.test}:{site}")
                    self.say(site, "! " + "".join("01"[equals(value, each)] for each in offered), again=True)
        return True

    def is_(self, site, value):
        self.say(site, "= " + (_repr(value) if value is None or value is True or value is False else "another"))
        return True

    def near(self, site, value):
        try:
            text = _repr(plain(value))
        except Rich:
            text = _repr(_float(value))
        self.say(site, "= " + text)
        return True

    def same(self, site, one, other):
        first, second = attempted(one), attempted(other)
        if first and second:
            self.say(site, f": ({_repr(first[0])}, {_repr(second[0])})")
            return True
        right = equals(one, other)
        if second or first:
            rich, known = (one, second[0]) if second else (other, first[0])
            right = right and not all(equals(rich, self.altered(known, turn)) for turn in (1, 2, 3))
        else:
            right = right and not equals(one, Rich()) and not equals(other, Rich())
        self.say(site, f"- {right}")
        return True

    def end(self, site):
        self.say(site, "- True")

    def say(self, site, text, again=False):
        """Each thing once: a loop may see the same a thousand times."""
        with self.lock:
            key = self.test, site, _hash(text)
            if self.test is not None and (again or key not in self.said):
                self.said.add(key)
                self.report(f"@{self.test}:{site}", text)


def plain(value, depth=60):
    """The value in builtin types alone; raises Rich where that would not be the same to `==`."""
    kind = _type(value)
    if depth == 0:
        raise Rich
    if value is None or kind is _bool:
        return value
    for base in _HASHED:
        if kind is base or (base in kind.__mro__ and kind.__eq__ is base.__eq__):
            return value if kind is base else _raw(base, value)
    if kind is _list or (_list in kind.__mro__ and kind.__eq__ is _list.__eq__):
        return [plain(each, depth - 1) for each in _list.__iter__(value)]
    if kind is _tuple or (_tuple in kind.__mro__ and kind.__eq__ is _tuple.__eq__):
        return _tuple([plain(each, depth - 1) for each in _tuple.__iter__(value)])
    if kind is _dict or (_dict in kind.__mro__ and kind.__eq__ is _dict.__eq__):
        return {plain(key, depth - 1): plain(each, depth - 1) for key, each in _dict.items(value)}
    if kind is _set or kind is _frozenset:
        return {plain(each, depth - 1) for each in kind.__iter__(value)}
    raise Rich


def _raw(base, value):
    """The content of a subclass's value, whatever its methods say."""
    if base is _int:
        return _int.__int__(value)
    if base is _float:
        return _float.__float__(value)
    if base is _complex:
        return _complex.__add__(value, 0)
    return base.__getitem__(value, slice(None))


def attempted(value):
    try:
        return (plain(value),)
    except Rich:
        return ()


def equals(one, other):
    try:
        return _bool(one == other)
    except Exception:
        return False


class Tools:
    """The functions and classes of the test framework, as they are now."""

    def __init__(self):
        self.modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in TOOLS}
        self.known = _dict(self.seen())

    def seen(self):
        for name, module in self.modules.items():
            yield (name,), (sys.modules.get(name), None)
            for key, value in _list(vars(module).items()):
                if of_code(value):
                    yield (name, key), parts(value)
                if _isinstance(value, _type) and value.__module__.partition(".")[0] in TOOLS and name != "builtins":
                    for method, function in _list(vars(value).items()):
                        if of_code(function):
                            yield (name, key, method), parts(function)

    def changed(self):
        """What is no longer what it was; empty if nothing is."""
        now = _dict(self.seen())
        for key, before in self.known.items():
            after = now.get(key, ())
            if _len(after) != _len(before) or any(x is not y for x, y in zip(before, after, strict=True)):
                return ".".join(key)
        return ""


def of_code(value):
    return callable(value) or _isinstance(value, (classmethod, staticmethod, property))


def parts(value):
    """What a function does hangs on these; kept, so that none can be another's successor at its address."""
    value = getattr(value, "__func__", value) if _isinstance(value, (classmethod, staticmethod)) else value
    if _isinstance(value, property):
        return value, value.fget
    code = getattr(value, "__code__", None) if _type(value) is FUNCTION else None
    return (value, code, value.__defaults__, value.__kwdefaults__) if code else (value,)


FUNCTION = _type(of_code)

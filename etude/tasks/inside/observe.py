"""Part of a child of `guard`: tells the parent what tests see, so that it and not this process judges.

Goes before the program that runs tests (`suite`, `pytests`). `tasks.outside` has put calls of these in the tests:

  - `_equal_(site, value)` in place of `value == literal`: the literal is with the parent alone. The value is sent as
    text, one of no builtin type as what it equals among builtin values by its own account: `rich([2, 'two'])`, of each
    kind one. So it says what it is, and nothing here says what is wanted.
  - `_is_(site, value)` in place of `value is None`, and of `True` and `False`; `_near_(site, value)` in place of
    `value == approx(literal)`; `_items_(site, value)` and `_count_(site, value)` where its items are compared, with and
    without their order.
  - `_same_(site, one, other)` in place of `one == other` where both come about here: sent, too. Two of one type that is
    not builtin are compared here: what equal means is then for their type to say, which the solution may have written.
    Its word counts only where it hangs on what they hold (`distinguishes`).
  - `_end_(site)` at a test's end: it was run to there.

Builtins are kept as they were before the code under test was loaded, and `Tools` says whether the functions of the test
framework are still what they were then. Nothing of the workspace can be imported before that (`enter`).
"""

import builtins
import gc
import os
import sys
from _functools import _lru_cache_wrapper  # ty: ignore[import-not-found]  # of C; it has no stub
from _thread import RLock
from opcode import opmap
from types import CellType

TOOLS = ("builtins", "operator", "unittest", "pytest", "_pytest", "pluggy")
_type, _repr, _len, _list, _tuple, _dict, _set, _float = type, repr, len, list, tuple, dict, set, float
_bool, _int, _str, _bytes, _complex, _frozenset, _isinstance, _hash, _hasattr, _zip = (
    bool, int, str, bytes, complex, frozenset, isinstance, hash, hasattr, zip,
)  # fmt: skip
_PLAIN = (_int, _float, _str, _bytes, _complex)
_HELD = (
    (_list, "[", "]"), (_tuple, "tuple([", "])"), (_set, "set([", "])"), (_frozenset, "set([", "])"), (_dict, "{", "}"),
)  # fmt: skip
_VIEWS = ((_int, _float, _complex), (_str,), (_bytes,), (_list,), (_tuple,), (_set,), (_dict,))
"""What a value is tried as, of each row the first that it equals."""
DEPTH = 60


class Observer:
    """What the running test sees, for the parent; `test` is its key, None while none runs that counts. Code under test
    walks frames and the collector's objects: there are only callables of C that do not show what they call (`shut`)."""

    def __init__(self, report):
        self.report, self.test = report, None
        self.said, self.lock = _set(), RLock()
        for name in ("equal", "is", "near", "items", "count", "same", "end"):
            setattr(builtins, f"_{name}_", shut(getattr(self, name.replace("is", "is_"))))
        self.tools = Tools()

    def enter(self, paths, known):
        """The workspace comes first from now on. What the test framework has imported beyond the modules `known`, under
        a name that the workspace has too, is forgotten, so that tests meet the workspace's. Hands out what begins a
        test, what learns a test module, and what says which tool was changed."""
        sys.path[:0] = paths
        for name in _set(sys.modules) - known:
            top = name.partition(".")[0]
            if top not in TOOLS and any(os.path.exists(f"{path}/{top}{end}") for path in paths for end in ("", ".py")):
                del sys.modules[name]
        gc.freeze()  # the collector does not list what is here by now
        return shut(self.begin), shut(self.tools.learn), shut(self.tools.changed)

    def begin(self, test):
        self.test = test

    def equal(self, site, value):
        self.say(site, "= " + written(value, rich))
        return True

    def is_(self, site, value):
        self.say(site, "= " + (_repr(value) if value is None or value is True or value is False else "another"))
        return True

    def near(self, site, value):
        text = written(value, rich)
        if text.startswith("rich(") and _hasattr(_type(value), "__float__"):
            text = _repr(_float(value))
        self.say(site, "= " + text)
        return True

    def items(self, site, value):
        _len(value)
        return self.count(site, value)

    def count(self, site, value):
        self.say(site, "= " + written(_list(value), rich))
        return True

    def same(self, site, one, other):
        with self.lock:
            first, second = attempted(one), attempted(other)
            if first and second:
                self.say(site, f": ({first}, {second})")
            elif first or second:  # nothing of the plain one is left here when the other is asked what it is
                self.say(site, f"< {first or second}")
                asked = one if second else other
                del one, other, first, second
                self.say(site, "> " + written(asked, rich))
            else:
                self.compare(site, one, other)
        return True

    def compare(self, site, one, other):
        """Two that are more than builtin types."""
        if _type(one) is not _type(other):
            self.say(site, "~ False")
        elif _type(one) in (_list, _tuple) and _len(one) == _len(other):
            for pair in _zip(one, other):
                self.same(site, *pair)
        elif _type(one) is _dict and one.keys() == other.keys():
            for key in one:
                self.same(site, one[key], other[key])
        else:
            equal = equals(one, other) and equals(other, one)
            equal = equal and not equals(one, Rich()) and not equals(Rich(), other)
            self.say(site, f"~ {equal and distinguishes(one) and distinguishes(other)}")

    def end(self, site):
        self.say(site, "- True")

    def say(self, site, text):
        """Each thing once, but for halves: a loop may see the same a thousand times."""
        with self.lock:
            key = self.test, site, _hash(text)
            if self.test is not None and (text[0] in "<>" or key not in self.said):
                self.said.add(key)
                self.report(f"@{self.test}:{site}", text)


def shut(function):
    """A cache of no size is the one callable of C that does not show what it calls."""
    return _lru_cache_wrapper(function, 0, False, None)


class Rich(Exception):
    """A value that is more than builtin types."""


def written(value, other, depth=DEPTH):
    """The text of a value; `other(value, depth)` is that of one in it that is more than builtin types."""
    kind = _type(value)
    if value is None or kind is _bool:
        return _repr(value)
    for base in _PLAIN:
        if native(kind, base):
            return _repr(value if kind is base else _raw(base, value))
    for base, start, end in _HELD if depth > 0 else ():
        if native(kind, base):
            pairs = _dict.items(value) if base is _dict else base.__iter__(value)
            texts = [
                f"{written(each[0], other, depth - 1)}: {written(each[1], other, depth - 1)}" if base is _dict
                else written(each, other, depth - 1)
                for each in pairs
            ]  # fmt: skip
            return f"{start}{', '.join(texts)}{end}"
    return other(value, depth - 1)


def native(kind, base):
    return kind is base or (base in kind.__mro__ and kind.__eq__ is base.__eq__)


def attempted(value):
    """Its text, or None; runs nothing of the value's own."""
    try:
        return written(value, refused)
    except Rich:
        return None


def refused(value, depth):
    raise Rich


def rich(value, depth):
    """As text, what a value equals by its own account, of each kind of builtin value one."""
    kind, views = _type(value), []
    holds = _hasattr(kind, "__iter__") and not _hasattr(kind, "__next__")
    there = {_bytes: _hasattr(kind, "__bytes__") or kind is bytearray, _dict: _hasattr(kind, "items")}
    for bases in _VIEWS if depth > 0 else ():
        for base in bases:
            if there.get(base, holds or base not in (_list, _tuple, _set)):
                try:
                    view = base(value.items() if base is _dict else value)
                    if _type(view) is base and _bool(value == view):
                        views.append(written(view, rich, depth))
                        break
                except Exception:
                    continue
    return f"rich([{', '.join(views)}])"


def _raw(base, value):
    """The content of a subclass's value, whatever its methods say."""
    if base is _int:
        return _int.__int__(value)
    if base is _float:
        return _float.__float__(value)
    if base is _complex:
        return _complex.__add__(value, 0)
    return base.__getitem__(value, slice(None))


def equals(one, other):
    try:
        return _bool(one == other)
    except Exception:
        return False


def distinguishes(one):
    """Whether its type compares what it holds: with some of it exchanged it is another value. Equality of C's compares
    content or identity; one that holds nothing was given nothing."""
    kind = _type(one)
    if _type(kind.__eq__) is _SLOT:
        return True
    held = _list(fields(one))
    base = next((base for base, *_ in _HELD if _isinstance(one, base)), None)
    if base is not None and _len(base(one)) and not equals(one, copied(one, held, base, None)):
        return True
    if not held:
        return kind.__init__ is object.__init__ and kind.__new__ is object.__new__
    return any(not equals(one, copied(one, held, base or object, name)) for name, _ in held)


def fields(one):
    """The names and values of its attributes, whatever its type says they are."""
    for kind in _type(one).__mro__:
        for name, slot in _list(vars(kind).items()):
            if _type(slot) is _MEMBER and _hasattr(one, name):
                yield name, slot.__get__(one)
            elif name == "__dict__" and _type(slot) is _GETSET:
                yield from _list(slot.__get__(one).items())


def copied(one, held, base, exchanged):
    """Another with the same attributes, but for one, and nothing else in it."""
    copy = base.__new__(_type(one))
    for name, value in held:
        object.__setattr__(copy, name, Rich() if name == exchanged else value)
    return copy


_SLOT, _MEMBER, _GETSET = (
    _type(object.__eq__),
    _type(_type(distinguishes).__globals__),
    _type(_type(distinguishes).__code__),
)


class Tools:
    """The functions and classes of the test framework and of the tests, as they are now."""

    def __init__(self):
        self.tests = _set()
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

        for module in self.tests:
            yield from named(module)

    def learn(self, module):
        """A test module that has been executed: what it calls is as it is now until the end."""
        self.tests.add(module)
        self.known.update(named(module))

    def changed(self):
        """What is no longer what it was; empty if nothing is."""
        now = _dict(self.seen())
        for key, before in self.known.items():
            after = now.get(key, ())
            if _len(after) != _len(before) or any(x is not y for x, y in zip(before, after, strict=True)):
                return ".".join(key)
        return ""


def named(module):
    """What decides in a test module: tools, its tests, what compares for them, and its test classes' methods. Others
    may change while tests run, as what a test hands over to be wrapped."""
    for name, value in _list(vars(module).items()):
        kind = _type(value)
        if kind is _type(sys) and value.__name__.partition(".")[0] in TOOLS:
            yield (module.__name__, name), (value,)
        elif kind is FUNCTION and (decides(name, value) or of_tools(value)):
            yield (module.__name__, name), parts(value)
        elif issubclass(kind, _type) and (of_tools(value) or "Test" in name or any(map(of_tools, value.__mro__[:-1]))):
            yield (module.__name__, name), (value,)
            for method in _set().union(*map(vars, value.__mro__)):
                base = next(base for base in value.__mro__ if method in vars(base))
                found = vars(base)[method]
                ours = of_tools(base) or base.__module__ == module.__name__
                if ours and _type(getattr(found, "__func__", found)) is FUNCTION:
                    yield (module.__name__, name, method), parts(found)


def decides(name, function):
    """Whether it is a test, or makes assertions."""
    code = function.__code__
    return name.startswith("test") or COMPARES & _set(code.co_names) or ASSERTS in code.co_code[::2]


def of_tools(value):
    return _str(value.__module__).partition(".")[0] in TOOLS and value.__module__ != "builtins"


def of_code(value):
    return callable(value) or _isinstance(value, (classmethod, staticmethod, property))


def parts(value):
    """What a function does hangs on these; kept, so that none can be another's successor at its address."""
    value = getattr(value, "__func__", value) if _isinstance(value, (classmethod, staticmethod)) else value
    if _isinstance(value, property):
        return value, value.fget
    if _type(value) is not FUNCTION:
        return (value,)
    held = [cell.cell_contents for cell in value.__closure__ or () if cell != EMPTY]
    called = [each for each in held if _type(each) is FUNCTION]
    codes = [each.__code__ for each in called]
    return (value, value.__code__, value.__defaults__, value.__kwdefaults__, *called, *codes)


COMPARES = {"_equal_", "_is_", "_near_", "_items_", "_count_", "_same_", "AssertionError"}
ASSERTS = opmap.get("LOAD_ASSERTION_ERROR", -1)
FUNCTION, EMPTY = _type(of_code), CellType()

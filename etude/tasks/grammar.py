"""The grammar of the generated ladder: function shapes, what their docstrings say, and how they break.

Owns `SHAPES` (a function is a shape with its slots filled), `BUGS` (a bug is one slot changed, two exchanged, or a line
that belongs elsewhere), and the hold-out split of both by the hash rule. A docstring is said from the same slots as the
code, so it determines the fix, unless it is vague: then only trying tells the operator. Knows nothing of files, tests
or sandboxes.

A slot's kind is the first letter of its name:
    v variable · o arithmetic operator · q comparison · k integer · z initial value · f builtin of a pair · m method of
    a pair · i end of a list · s side of a slice · l boolean operator · g augmented assignment · b reverse flag · n
    negation
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from etude.tasks.holdout import is_held_out

Slots = Mapping[str, str]
Fold = Literal["train", "heldout", "any"]

WORDS_OF = {
    "+": "plus", "-": "minus", "*": "times", "<": "below", "<=": "at most", ">": "above", ">=": "at least",
    "==": "equal to", "!=": "other than", "max": "larger", "min": "smaller", "all": "every", "any": "some",
    "upper": "upper", "lower": "lower", "startswith": "starts", "endswith": "ends", "0": "first", "-1": "last",
    "head": "first", "tail": "all but the first", "and": "and", "or": "or", "+=": "adding", "-=": "subtracting",
    "False": "rising", "True": "falling", "not ": "not ", "": "", "sum": "sum", "len": "number",
    "lstrip": "left", "rstrip": "right",
}  # fmt: skip

CHOICES: dict[str, tuple[str, ...]] = {
    "o": ("+", "-", "*"), "q": ("<", "<=", ">", ">=", "==", "!="), "l": ("and", "or"), "g": ("+=", "-="),
    "i": ("0", "-1"), "s": ("head", "tail"), "b": ("False", "True"), "z": ("0", "1"), "n": ("", "not "),
    "k": tuple(str(n) for n in range(2, 10)),
}  # fmt: skip
BUILTIN_PAIRS = (("max", "min"), ("all", "any"), ("sum", "len"))
METHOD_PAIRS = (("upper", "lower"), ("startswith", "endswith"), ("lstrip", "rstrip"))
PARTNER = {a: b for pair in (*BUILTIN_PAIRS, *METHOD_PAIRS) for a, b in (pair, pair[::-1])}

PARAMETERS = {"int": ("a", "b", "c", "n", "m"), "list": ("xs", "ys"), "str": ("s", "t")}


@dataclass(frozen=True)
class Shape:
    """A family of functions. `params` are types; `v1`… are bound to the parameters in order, others drawn by kind."""

    name: str
    params: tuple[str, ...]
    doc: str
    code: str
    pairs: Mapping[str, tuple[str, str]]
    """Which pair an f or m slot is drawn from."""

    @property
    def held_out(self) -> bool:
        return is_held_out("shape", self.name)


def _shape(name: str, params: str, doc: str, code: str, **pairs: tuple[str, str]) -> Shape:
    return Shape(name, tuple(params.split()), doc, code, pairs)


_MAXMIN, _ALLANY, _SUMLEN = BUILTIN_PAIRS
_CASE, _EDGE, _STRIP = METHOD_PAIRS

SHAPES: tuple[Shape, ...] = (
    _shape("pair", "int int", "{v1} {o1w} {v2}", "return {v1} {o1} {v2}"),
    _shape("triple", "int int int", "{v1} {o1w} {v2} {o2w} {v3}", "return {v1} {o1} {v2} {o2} {v3}"),
    _shape("affine", "int int", "{v1} {o1w} {v2} {o2w} {k1}", "return {v1} {o1} {v2} {o2} {k1}"),
    _shape("shift", "int", "{v1} {o1w} {k1}", "return {v1} {o1} {k1}"),
    _shape("scaled", "int int", "({v1} {o1w} {v2}) {o2w} {k1}", "return ({v1} {o1} {v2}) {o2} {k1}"),
    _shape("local", "int int", "{v1} {o1w} {k1}, then {o2w} {v2}", "r = {v1} {o1} {k1}\nreturn r {o2} {v2}"),
    _shape(
        "guard", "int int", "{v2} if {v1} is {q1w} {k1}, else {v1} {o1w} {v2}",
        "if {v1} {q1} {k1}:\n    return {v2}\nreturn {v1} {o1} {v2}",
    ),
    _shape("choose", "int int int", "{v1} if {v2} is {q1w} {v3}, else {v2}", "return {v1} if {v2} {q1} {v3} else {v2}"),
    _shape("bound", "int", "the {f1w} of {v1} and {k1}", "return {f1}({v1}, {k1})", f1=_MAXMIN),
    _shape(
        "peak", "int int int", "the {f1w} of {v1} {o1w} {v2} and {v3}",
        "return {f1}({v1} {o1} {v2}, {v3})", f1=_MAXMIN,
    ),
    _shape("clip", "int int", "{v1} {o1w} {v2}, no less than {k1}", "r = {v1} {o1} {v2}\nreturn max(r, {k1})"),
    _shape("gap", "int int", "the size of {v1} {o1w} {v2}", "return abs({v1} {o1} {v2})"),
    _shape("modulo", "int int", "whether {v1} {o1w} {v2} is {q1w} {k1}", "return {v1} {o1} {v2} {q1} {k1}"),
    _shape(
        "between", "int int int", "whether {v1} is {q1w} {v2} {l1w} {v2} is {q2w} {v3}",
        "return {v1} {q1} {v2} {l1} {v2} {q2} {v3}",
    ),
    _shape("deny", "int int", "whether {v1} is {n1w}{q1w} {v2}", "return {n1}{v1} {q1} {v2}"),
    _shape("pick", "list", "the items of {v1} {q1w} {k1}", "return [x for x in {v1} if x {q1} {k1}]"),
    _shape("remap", "list int", "every item of {v1} {o1w} {v2}", "return [x {o1} {v2} for x in {v1}]"),
    _shape(
        "pickmap", "list", "the items of {v1} {q1w} {k1}, each {o1w} {k2}",
        "return [x {o1} {k2} for x in {v1} if x {q1} {k1}]",
    ),
    _shape(
        "fold", "list", "{z1}, {g1w} every item of {v1} {o1w} {k1}",
        "r = {z1}\nfor x in {v1}:\n    r {g1} x {o1} {k1}\nreturn r",
    ),
    _shape(
        "sift", "list", "{z1}, {g1w} the items of {v1} {q1w} {k1}",
        "r = {z1}\nfor x in {v1}:\n    if x {q1} {k1}:\n        r {g1} x\nreturn r",
    ),
    _shape("tally", "list", "how many items of {v1} are {q1w} {k1}", "return sum(1 for x in {v1} if x {q1} {k1})"),
    _shape("ends", "list int", "the {i1w} item of {v1} {o1w} {v2}", "return {v1}[{i1}] {o1} {v2}"),
    _shape("slice", "list", "{s1w} {k1} items of {v1}", "return {v1}[{s1c}]"),
    _shape("total", "list int", "the {f1w} of {v1} {o1w} {v2}", "return {f1}({v1}) {o1} {v2}", f1=_SUMLEN),
    _shape("order", "list", "{v1} in {b1w} order", "return sorted({v1}, reverse={b1})"),
    _shape(
        "every", "list int", "whether {f1w} item of {v1} is {q1w} {v2}",
        "return {f1}(x {q1} {v2} for x in {v1})", f1=_ALLANY,
    ),
    _shape(
        "dot", "list list", "the sum of x {o1w} y over {v1} and {v2}",
        "return sum(x {o1} y for x, y in zip({v1}, {v2}))",
    ),
    _shape("casing", "str str", "{v1} in {m1w} case, then {v2}", "return {v1}.{m1}() + {v2}", m1=_CASE),
    _shape("edge", "str str", "whether {v1} {m1w} with {v2}", "return {v1}.{m1}({v2})", m1=_EDGE),
    _shape("repeat", "str str", "{v1}, then {v2} {k1} times", "return {v1} + {v2} * {k1}"),
    _shape("trim", "str str", "{v1} stripped on the {m1w}, then {v2}", "return {v1}.{m1}() + {v2}", m1=_STRIP),
)  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A shape with its slots filled and, after `break_it`, a bug."""

    name: str
    shape: str
    params: tuple[str, ...]
    types: tuple[str, ...]
    doc: str
    slots: Slots
    code: str
    vague: str = ""
    """The operator's slot that the comment does not tell; it is the one that breaks."""

    def render(self) -> str:
        """Source text, ending in a newline."""
        doc = f"    # {self.doc}"
        body = "\n".join("    " + line for line in self.body)
        return f"def {self.name}({', '.join(self.params)}):\n{doc}\n{body}\n"

    @property
    def body(self) -> list[str]:
        return fill_code(self.code, self.slots).split("\n")


def fill_code(template: str, slots: Slots) -> str:
    """Fill a code template; `s1c` is the slice that slot `s1` says."""
    values = dict(slots)
    for name, value in slots.items():
        if name[0] == "s":
            values[f"{name}c"] = f":{slots['k1']}" if value == "head" else f"{slots['k1']}:"
    return template.format(**values)


def skeleton(code: str) -> str:
    """What is left of a code template when variables and constants are all one, and slots only kinds."""
    return re.sub(r"\{([a-z])\dc?\}", r"<\1>", re.sub(r"\{[vk]\d\}", "·", code))


def fill_docstring(template: str, slots: Slots, vague: str = "") -> str:
    """Fill a docstring template; for the slot `vague` it says `with` where the operator's word would stand."""
    said = {f"{name}w": WORDS_OF.get(value, value) for name, value in slots.items()}
    if vague:
        said[f"{vague}w"] = "with"
    return template.format(**slots, **said)


def make_function(rng: random.Random, name: str, fold: Fold, vague: bool = False) -> Function:
    """Draw a shape of the fold and fill its slots."""
    shapes = [shape for shape in SHAPES if fold == "any" or shape.held_out == (fold == "heldout")]
    return from_shape(rng, rng.choice(shapes), name, vague)


def from_shape(rng: random.Random, shape: Shape, name: str, vague: bool = False) -> Function:
    params = _draw_params(rng, shape.params)
    slots = {f"v{index}": param for index, param in enumerate(params, 1)}
    for slot in dict.fromkeys(re.findall(r"\{([a-z]\d)", shape.code + shape.doc)):
        if slot not in slots:
            slots[slot] = rng.choice(shape.pairs.get(slot) or CHOICES[slot[0]])
    operators = [slot for slot in slots if slot[0] == "o"]
    untold = rng.choice(operators) if vague and operators else ""
    doc = fill_docstring(shape.doc, slots, untold)
    return Function(name, shape.name, tuple(params), shape.params, doc, slots, shape.code, untold)


def _draw_params(rng: random.Random, types: tuple[str, ...]) -> list[str]:
    pools = {kind: rng.sample(names, len(names)) for kind, names in PARAMETERS.items()}
    return [pools[kind].pop() for kind in types]


# --- bugs -------------------------------------------------------------------------------------------------------------

Mutation = Callable[[random.Random, Function], Function | None]


def _redraw(kind: str, choices: Callable[[str], tuple[str, ...]]) -> Mutation:
    """A bug that changes one slot of a kind to another value."""

    def mutate(rng: random.Random, function: Function) -> Function | None:
        names = [name for name in function.slots if name[0] == kind and function.vague in ("", name)]
        if not names:
            return None
        name = rng.choice(names)
        others = [value for value in choices(function.slots[name]) if value != function.slots[name]]
        return with_slot(function, name, rng.choice(others)) if others else None

    return mutate


def with_slot(function: Function, slot: str, value: str) -> Function:
    return replace(function, slots={**function.slots, slot: value})


def _alike(function: Function) -> list[tuple[str, str]]:
    """Pairs of two variables of one type, in both orders."""
    names = [name for name in function.slots if name[0] == "v"]
    return [(p, q) for p in names for q in names if p != q and _type(function, p) == _type(function, q)]


def _swapped(function: Function, p: str, q: str) -> Function:
    return replace(function, slots={**function.slots, p: function.slots[q], q: function.slots[p]})


def _swap_variables(rng: random.Random, function: Function) -> Function | None:
    """Exchange two variables of one type, as in a - b for b - a."""
    pairs = [(p, q) for p, q in _alike(function) if p < q]
    return _swapped(function, *rng.choice(pairs)) if pairs else None


def _wrong_variable(rng: random.Random, function: Function) -> Function | None:
    """Use one parameter where another of its type belongs."""
    pairs = _alike(function)
    if not pairs:
        return None
    p, q = rng.choice(pairs)
    return with_slot(function, p, function.slots[q])


def _foreign_line(rng: random.Random, function: Function) -> Function | None:
    """The body of quite another one-line function of the same parameters; the comment alone says what belongs there."""
    own = skeleton(function.code)
    shapes = [shape for shape in SHAPES if shape.params == function.types and skeleton(shape.code) != own]
    shapes = [shape for shape in shapes if "\n" not in shape.code + function.code and not shape.held_out]
    if not shapes:
        return None
    other = from_shape(rng, rng.choice(shapes), function.name)
    variables = {f"v{index}": name for index, name in enumerate(function.params, 1)}
    return replace(function, code=other.code, slots={**other.slots, **variables})


def _type(function: Function, slot: str) -> str:
    return function.types[int(slot[1:]) - 1]


def _boundary(value: str) -> tuple[str, ...]:
    return {"<": ("<=",), "<=": ("<",), ">": (">=",), ">=": (">",)}.get(value, ())


def _opposite(value: str) -> tuple[str, ...]:
    return {"<": (">", ">="), "<=": (">=", ">"), ">": ("<", "<="), ">=": ("<=", "<"), "==": ("!=",), "!=": ("==",)}[
        value
    ]


REDRAWN: dict[str, tuple[str, Callable[[str], tuple[str, ...]]]] = {
    "operator": ("o", lambda value: CHOICES["o"]),
    "boundary": ("q", _boundary),
    "opposite": ("q", _opposite),
    "constant": ("k", lambda value: (str(int(value) - 1), str(int(value) + 1))),
    "start": ("z", lambda value: CHOICES["z"]),
    "builtin": ("f", lambda value: (PARTNER[value],)),
    "method": ("m", lambda value: (PARTNER[value],)),
    "end": ("i", lambda value: CHOICES["i"]),
    "side": ("s", lambda value: CHOICES["s"]),
    "connective": ("l", lambda value: CHOICES["l"]),
    "direction": ("b", lambda value: CHOICES["b"]),
    "negation": ("n", lambda value: CHOICES["n"]),
    "sign": ("g", lambda value: CHOICES["g"]),
}
"""Bugs that give one slot another value: the slot's kind, and the values it may get instead of one."""
BUGS: dict[str, Mutation] = {
    **{name: _redraw(*how) for name, how in REDRAWN.items()},
    "swap": _swap_variables,
    "variable": _wrong_variable,
    "foreign": _foreign_line,
}


def bug_names(fold: Fold) -> list[str]:
    return [name for name in BUGS if fold == "any" or is_held_out("bug", name) == (fold == "heldout")]


def break_it(rng: random.Random, function: Function, bug: str) -> Function | None:
    """The function with one line wrong, or None where this bug does not apply. The docstring stays right."""
    broken = BUGS[bug](rng, function)
    if broken is None:
        return None
    changed = [i for i, (good, bad) in enumerate(zip(function.body, broken.body, strict=True)) if good != bad]
    return broken if len(changed) == 1 else None


def neighbours(function: Function) -> list[Function]:
    """The function with one slot filled otherwise, in each way there is."""
    found = []
    for slot, value in function.slots.items():
        if slot[0] == "v":
            pairs = zip(function.params, function.types, strict=True)
            others = [name for name, kind in pairs if kind == _type(function, slot)]
        else:
            others = [PARTNER[value]] if slot[0] in "fm" else [*CHOICES[slot[0]]]
        found += [with_slot(function, slot, other) for other in others if other != value]
    return found


def mends(function: Function, fold: Fold = "train") -> list[tuple[str, Function]]:
    """Every other form of it that one bug of the fold makes of it, or could have made it of, and the bug's name."""
    found = [
        (bug, with_slot(function, slot, other))
        for bug, (kind, choices) in REDRAWN.items()
        for slot, value in function.slots.items()
        if slot[0] == kind
        for other in choices(value)
    ]
    found += [("variable", with_slot(function, slot, name)) for slot, name in _other_variables(function)]
    found += [("swap", _swapped(function, p, q)) for p, q in _alike(function) if p < q]
    known, distinct = set(bug_names(fold)), {function.render()}
    kept = []
    for bug, form in found:
        changed = sum(here != there for here, there in zip(function.body, form.body, strict=True))
        if bug in known and changed == 1 and form.render() not in distinct:
            distinct.add(form.render())
            kept.append((bug, form))
    return kept


def _other_variables(function: Function) -> list[tuple[str, str]]:
    """Slots of variables, each with every other parameter of its type."""
    return [
        (slot, name)
        for slot in function.slots
        if slot[0] == "v"
        for name, kind in zip(function.params, function.types, strict=True)
        if kind == _type(function, slot) and name != function.slots[slot]
    ]


# --- running a function -----------------------------------------------------------------------------------------------


def draw_arguments(rng: random.Random, types: tuple[str, ...]) -> list[Any]:
    """Small values, so that a call and its result stay short in a test's output."""
    draw: dict[str, Callable[[], Any]] = {
        "int": lambda: rng.randint(1, 12),
        "list": lambda: [rng.randint(1, 12) for _ in range(rng.randint(2, 4))],
        "str": lambda: (
            rng.choice((" ", ""))
            + "".join(rng.choice("abcAB") for _ in range(rng.randint(2, 3)))
            + rng.choice((" ", ""))
        ),
    }
    return [draw[kind]() for kind in types]


def draw_wide_arguments(rng: random.Random, types: tuple[str, ...]) -> list[Any]:
    """Of the same types, and of any size that a hidden case may have: half of them close to nothing."""
    low, high = rng.choice(((-4, 9), (-30, 99)))
    draw: dict[str, Callable[[], Any]] = {
        "int": lambda: rng.randint(low, high),
        "list": lambda: [rng.randint(low, high) for _ in range(rng.randint(0, 7))],
        "str": lambda: "".join(rng.choice("abcxyzABZ  ") for _ in range(rng.randint(0, 6))),
    }
    return [draw[kind]() for kind in types]

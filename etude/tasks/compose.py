"""Function shapes without end: expressions put together at random, with the comment that says them.

Owns `random_shape`, which drills use beside the ladder's own shapes, so that a line must be copied and a comment read,
not recalled, and `number_shape`, which the ladder's upper rungs are made of. A shape that is held out stays out: the
hash rule decides about each structure, and none that has the form of a held-out shape of the ladder is ever trained on,
whatever its variables and constants.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from etude.tasks.grammar import BUILTIN_PAIRS, METHOD_PAIRS, SHAPES, Shape, skeleton
from etude.tasks.holdout import is_held_out

_SIGNATURES = ("int", "int int", "int int", "int int int", "list", "list int", "list int", "list list", "str str")
_NUMBERS_AND_LISTS = _SIGNATURES[:-1]
_MAXMIN, _ALLANY, _SUMLEN = BUILTIN_PAIRS


class Phrase(NamedTuple):
    """An expression's template, how the comment says it, and whether it needs no parentheses."""

    code: str
    doc: str
    atomic: bool = True

    def inner(self) -> Phrase:
        """As an operand of another."""
        return self if self.atomic else Phrase(f"({self.code})", f"({self.doc})")


_HELD_OUT_FORMS = {skeleton(shape.code) for shape in SHAPES if shape.held_out}


def random_shape(rng: random.Random) -> Shape:
    """A shape that may be trained on. Its name is its form."""
    return _drawn(rng, _SIGNATURES, lambda composer: composer.body(), held_out=False)


def number_shape(rng: random.Random, held_out: bool = False) -> Shape:
    """The same, of a function that returns a number; or one that may not be trained on."""
    return _drawn(rng, _NUMBERS_AND_LISTS, lambda composer: composer.number_body(), held_out)


def _drawn(
    rng: random.Random,
    signatures: tuple[str, ...],
    body: Callable[[_Composer], tuple[str, str]],
    held_out: bool,
) -> Shape:
    while True:
        params = tuple(rng.choice(signatures).split())
        composer = _Composer(rng, params)
        code, doc = body(composer)
        used = all(f"{{v{index}}}" in code for index in range(1, len(params) + 1))
        name = skeleton(code)
        if used and is_held_out("shape", name) == held_out and (held_out or name not in _HELD_OUT_FORMS):
            return Shape(name, params, doc, code, composer.pairs)


class _Composer:
    """Draws one function's body; numbers its slots as it goes."""

    def __init__(self, rng: random.Random, params: tuple[str, ...]) -> None:
        self.rng, self.pairs = rng, {}
        self.counts: Counter[str] = Counter()
        by_type = {kind: [f"{{v{i}}}" for i, p in enumerate(params, 1) if p == kind] for kind in ("int", "list", "str")}
        self.numbers, self.lists, self.texts = by_type["int"], by_type["list"], by_type["str"]

    def slot(self, kind: str, pair: tuple[str, str] | None = None) -> str:
        self.counts[kind] += 1
        name = f"{kind}{self.counts[kind]}"
        if pair:
            self.pairs[name] = pair
        return name

    def body(self) -> tuple[str, str]:
        """The lines, and the comment."""
        if self.texts:
            phrase = self.text(2)
            return f"return {phrase.code}", phrase.doc
        roll = self.rng.random()
        if roll < 0.1:
            return self.two_steps()
        if roll < 0.2:
            return self.branch()
        if self.lists:
            if roll < 0.35:
                return self.loop()
            if roll < 0.65:
                phrase = self.listing()
                return f"return {phrase.code}", phrase.doc
        if roll < 0.8:
            phrase = self.number(2)
            return f"return {phrase.code}", phrase.doc
        phrase = self.truth(1)
        return f"return {phrase.code}", f"whether {phrase.doc}"

    def number_body(self) -> tuple[str, str]:
        """The same, of what returns a number."""
        roll = self.rng.random()
        if roll < 0.25:
            return self.two_steps()
        if roll < 0.5:
            return self.branch()
        if self.lists and roll < 0.75:
            return self.loop()
        phrase = self.number(2)
        return f"return {phrase.code}", phrase.doc

    def two_steps(self) -> tuple[str, str]:
        first, then, o = self.number(1), self.other(Phrase("r", "r")), self.slot("o")
        return f"r = {first.code}\nreturn r {{{o}}} {then.code}", f"{first.doc}, then {{{o}w}} {then.doc}"

    def branch(self) -> tuple[str, str]:
        test, yes, no = self.comparison(), self.number(1), self.number(1)
        doc = f"{yes.doc} if {test.doc}, else {no.doc}"
        if self.rng.random() < 0.5:
            return f"return {yes.code} if {test.code} else {no.code}", doc
        return f"if {test.code}:\n    return {yes.code}\nreturn {no.code}", doc

    def loop(self) -> tuple[str, str]:
        items, z, g = self.rng.choice(self.lists), self.slot("z"), self.slot("g")
        item = self.number(1, "x")
        if self.rng.random() < 0.5:
            code = f"r = {{{z}}}\nfor x in {items}:\n    r {{{g}}} {item.code}\nreturn r"
            return code, f"{{{z}}}, {{{g}w}} {item.doc} for every x of {items}"
        test = self.comparison("x")
        code = f"r = {{{z}}}\nfor x in {items}:\n    if {test.code}:\n        r {{{g}}} {item.code}\nreturn r"
        return code, f"{{{z}}}, {{{g}w}} {item.doc} for every x of {items} if {test.doc}"

    # --- expressions --------------------------------------------------------------------------------------------------

    def atom(self, item: str = "") -> Phrase:
        """A constant, or a variable; `item` is the loop's, where there is one."""
        return self.variable(item) if self.rng.random() < 0.6 else self.constant()

    def constant(self) -> Phrase:
        name = f"{{{self.slot('k')}}}"
        return Phrase(name, name)

    def variable(self, item: str = "") -> Phrase:
        names = [item] if item else self.numbers
        if not names:
            return self.of_list(0) if self.lists else self.constant()
        name = self.rng.choice(names)
        return Phrase(name, name)

    def number(self, depth: int, item: str = "") -> Phrase:
        if self.lists and not item and self.rng.random() < 0.5:
            return self.of_list(depth)
        if depth == 0:
            return self.variable(item)
        left, roll = self.number(depth - 1 if self.rng.random() < 0.5 else 0, item), self.rng.random()
        right = self.other(left, item)
        if roll < 0.22:
            f = self.slot("f", _MAXMIN)
            return Phrase(f"{{{f}}}({left.code}, {right.code})", f"the {{{f}w}} of {left.doc} and {right.doc}")
        if roll < 0.28:
            inside = left if not left.atomic else Phrase(f"{left.code} - {right.code}", f"{left.doc} minus {right.doc}")
            return Phrase(f"abs({inside.code})", f"the size of ({inside.doc})")
        o = self.slot("o")
        if self.rng.random() < 0.6:
            left = left.inner()
        return Phrase(f"{left.code} {{{o}}} {right.code}", f"{left.doc} {{{o}w}} {right.doc}", atomic=False)

    def other(self, left: Phrase, item: str = "") -> Phrase:
        """An atom that is not `left`: of a parameter, or else a constant."""
        names = [name for name in self.numbers if name != left.code]
        if names and self.rng.random() < 0.6:
            name = self.rng.choice(names)
            return Phrase(name, name)
        return self.constant() if left.code == item or self.rng.random() < 0.9 else self.variable(item)

    def of_list(self, depth: int) -> Phrase:
        items, roll = self.rng.choice(self.lists), self.rng.random()
        if roll < 0.35:
            i = self.slot("i")
            whole = Phrase(f"{items}[{{{i}}}]", f"the {{{i}w}} item of {items}")
        elif roll < 0.75 or depth < 2:
            f = self.slot("f", _SUMLEN)
            whole = Phrase(f"{{{f}}}({items})", f"the {{{f}w}} of {items}")
        else:
            inner, f = self.listing(), self.slot("f", _SUMLEN)
            whole = Phrase(f"{{{f}}}({inner.code})", f"the {{{f}w}} of {inner.doc}")
        if depth and self.rng.random() < 0.6:
            o, right = self.slot("o"), self.other(whole)
            return Phrase(f"{whole.code} {{{o}}} {right.code}", f"{whole.doc} {{{o}w}} {right.doc}", atomic=False)
        return whole

    def comparison(self, item: str = "") -> Phrase:
        left = self.number(int(self.rng.random() < 0.4), item)
        q, right = self.slot("q"), self.other(left, item)
        return Phrase(f"{left.code} {{{q}}} {right.code}", f"{left.doc} is {{{q}w}} {right.doc}", atomic=False)

    def truth(self, depth: int) -> Phrase:
        roll = self.rng.random()
        if self.lists and roll < 0.5:
            f, items, test = self.slot("f", _ALLANY), self.rng.choice(self.lists), self.comparison("x")
            return Phrase(f"{{{f}}}({test.code} for x in {items})", f"{test.doc} for {{{f}w}} x of {items}")
        first = self.comparison()
        if roll < 0.65:
            n = self.slot("n")
            return Phrase(f"{{{n}}}({first.code})", f"{{{n}w}}({first.doc})")
        if depth and roll < 0.85:
            link, second = self.slot("l"), self.comparison()
            return Phrase(f"{first.code} {{{link}}} {second.code}", f"{first.doc} {{{link}w}} {second.doc}", False)
        return first

    def listing(self) -> Phrase:
        items, roll = self.rng.choice(self.lists), self.rng.random()
        if len(self.lists) == 2 and roll < 0.4:
            o, right = self.slot("o"), "y"
            pairs = f"zip({self.lists[0]}, {self.lists[1]})"
            doc = f"x {{{o}w}} {right} over {self.lists[0]} and {self.lists[1]}"
            return Phrase(f"[x {{{o}}} {right} for x, y in {pairs}]", doc)
        if roll < 0.5:
            b, end = self.slot("b"), self.rng.choice(("", "[:{k}]", "[{k}:]"))
            code, doc = f"sorted({items}, reverse={{{b}}})", f"{items} in {{{b}w}} order"
            if end:
                k = f"{{{self.slot('k')}}}"
                side = "the first {k} of" if end.startswith("[:") else "all but the first {k} of"
                return Phrase(code + end.replace("{k}", k), f"{side.replace('{k}', k)} {doc}")
            return Phrase(code, doc)
        item = self.number(1, "x")
        if roll < 0.75:
            return Phrase(f"[{item.code} for x in {items}]", f"{item.doc} for every x of {items}")
        test = self.comparison("x")
        if roll < 0.87:
            return Phrase(f"[x for x in {items} if {test.code}]", f"every x of {items} if {test.doc}")
        doc = f"{item.doc} for every x of {items} if {test.doc}"
        return Phrase(f"[{item.code} for x in {items} if {test.code}]", doc)

    def text(self, depth: int) -> Phrase:
        name = self.rng.choice(self.texts)
        roll = self.rng.random()
        if depth == 0:
            return Phrase(name, name)
        if roll < 0.35:
            m = self.slot("m", METHOD_PAIRS[0])
            return Phrase(f"{name}.{{{m}}}()", f"{name} in {{{m}w}} case")
        if roll < 0.5:
            m = self.slot("m", METHOD_PAIRS[2])
            return Phrase(f"{name}.{{{m}}}()", f"{name} stripped on the {{{m}w}}")
        if roll < 0.6:
            k, side = f"{{{self.slot('k')}}}", self.rng.choice(("[:{}]", "[{}:]"))
            said = "the first {} letters of" if side.startswith("[:") else "all but the first {} letters of"
            return Phrase(name + side.format(k), f"{said.format(k)} {name}")
        if roll < 0.7:
            k = f"{{{self.slot('k')}}}"
            return Phrase(f"{name} * {k}", f"{name} {k} times", atomic=False)
        first, second = self.text(depth - 1), self.text(depth - 1)
        return Phrase(f"{first.code} + {second.code}", f"{first.doc}, then {second.doc}", atomic=False)

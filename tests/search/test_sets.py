"""The gold of the search's questions: functions that a commit changed, and whether a question names them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from searching.answers import KEYS, before, now
from searching.sets import Question, _changed, names_its_answer

from etude.search import Hit

TAKE = """\
def take(n, items):
    return items[:n]


"""
DROP = """\
def drop(n, items):
    return items[n:]


"""
OUTER = """\
def outer(x):
    def inner(y):
        return y
    return inner(x)
"""


def changed(one: str, other: str) -> list[tuple[int, int]]:
    return [(first, last) for _, first, last in _changed("a.py", one.encode(), other.encode())]


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [
        (TAKE + DROP, TAKE + TAKE.replace("take", "tail") + DROP, []),  # what stands beside one that is new
        (TAKE + DROP, DROP, [(1, 2)]),  # one that went, and nothing beside it
        (TAKE + DROP, DROP + TAKE, []),  # the same elsewhere
        (TAKE + DROP, TAKE + DROP.replace("n:", "n::1"), [(5, 6)]),
        (TAKE + DROP, TAKE + "\n# a remark\n" + DROP, []),
        (TAKE + DROP, TAKE + "@curry\n" + DROP, [(5, 6)]),  # its decorator is its own
        (OUTER, OUTER.replace("return y", "return y + 1"), [(2, 3)]),  # the inner alone
        (OUTER, OUTER.replace("inner(x)", "inner(x + 1)"), [(1, 4)]),  # the outer alone
        (OUTER, OUTER.replace("def inner(y)", "def inner(z)").replace("inner(x)", "inner(2)"), [(1, 4), (2, 3)]),
        ("x = '\f'\n" + TAKE, "x = '\f'\n" + TAKE.replace("[:n]", "[0:n]"), [(2, 3)]),  # lines are counted as ast does
        ("print 'old'\n", TAKE, []),
    ],
)
def test_a_function_is_right_where_its_own_text_differs_afterwards(one: str, other: str, right: list) -> None:
    assert changed(one, other) == right


def asked(text: str, *spans: tuple[str, int, int]) -> Question:
    return Question("shop", {"a.py": (TAKE + DROP).encode()}, text, frozenset({"a.py"}), spans)


def test_a_question_names_its_answer_by_a_word_of_its_own() -> None:
    take, drop = ("a.py", 1, 2), ("a.py", 5, 6)
    assert names_its_answer(asked("Let `take` have less", take))
    assert names_its_answer(asked("take() and others", drop, take))
    assert not names_its_answer(asked("Let `take` have less", drop)), "it names another"
    assert not names_its_answer(asked("mistake and takes", take)), "it is part of a word"
    assert not names_its_answer(asked("take it"))


LONG = "def long(x):\n" + "".join(f"    x = x + {at}\n" for at in range(40)) + "    return x\n"


def test_what_an_answer_costs_has_a_look_where_it_names_the_answer_and_does_not_show_it() -> None:
    tree = {"a.py": LONG.encode(), "b.py": (TAKE + DROP).encode(), "c.py": (DROP + TAKE).encode()}
    hits = [Hit("a.py", 1, 42, 3.0), Hit("b.py", 1, 2, 2.0), Hit("b.py", 5, 6, 1.0)]
    ask = Question("shop", tree, "drop some", frozenset(), (("b.py", 5, 6),))
    [outlined, whole] = now(ask, hits), before(ask, hits)
    assert (outlined.held, outlined.shown, whole.held, whole.shown) == (True, False, True, True)
    assert whole.tokens_read == whole.tokens and 20 < outlined.tokens_read - outlined.tokens < 60
    late = replace(ask, functions=(("a.py", 42, 42),))
    assert [(each.held, each.shown) for each in (now(late, hits), before(late, hits))] == [(True, False)] * 2, "cut off"
    assert before(late, hits).tokens_read > before(late, hits).tokens + 100
    nowhere = now(replace(ask, functions=(("c.py", 1, 2),)), hits)
    assert not nowhere.held and nowhere.tokens == nowhere.tokens_read, "there is nothing to look at"
    assert all(hasattr(nowhere, key) for key in KEYS)

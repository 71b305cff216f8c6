"""Tests that are written in rows, and unittest's comparisons: what they want is with the judge alone."""

import pytest
from judging import judged, pytest_form, suite_form

from etude.tasks.outside import split_expectations
from etude.tasks.verifiers import HeldOutCalls, suite_verifier, unasked_tests, with_unseen

SUITE = """
import unittest
import m

def test_rows():
    for items, wanted in [([4815], 4816), ([4815, 1],
                          4817)]:
        assert m.total(items) == wanted, f"{items}: {wanted}"

def test_named_rows():
    cases = [("a", [4823]), ("b", [4824])]
    for name, wanted in cases:
        assert m.listed(name) == wanted

class ValueTests(unittest.TestCase):
    def test_rows(self):
        for (items, other), wanted in (([4815], 0), 4816), (([4815, 5], 0), 4821):
            with self.subTest(items=items, wanted=wanted):
                self.assertEqual(m.total(items), wanted, msg=f"{wanted}")

    def test_close(self):
        self.assertAlmostEqual(m.close(), 48.2501)
        self.assertAlmostEqual(48.25, m.close(), 2)
        self.assertAlmostEqual(m.close(), 48.26, delta=0.1, msg="close")
        self.assertAlmostEqual(m.close(), second=48.2501)

    def test_count(self):
        wanted = [4824, 4823]
        self.assertCountEqual(m.both(), wanted)
        self.assertCountEqual({4823: 0, 4824: 1}, m.both())

    def test_items(self):
        self.assertSequenceEqual(m.both(), [4823, 4824])
        self.assertListEqual(list(m.both()), [4823, 4824], "listed")

    def test_lines(self):
        self.assertMultiLineEqual(m.lines(), "4825\\n4826\\n")
"""
TESTS = ("test_rows", "test_named_rows", "ValueTests.test_rows", "ValueTests.test_close", "ValueTests.test_count",
         "ValueTests.test_items", "ValueTests.test_lines")  # fmt: skip
ROWS = """
import pytest

@pytest.mark.parametrize("name, wanted", [("a", [4823]), pytest.param("b", [4824], id="b")])
def test_listed(name, wanted):
    assert m.listed(name) == wanted

@pytest.mark.parametrize(("items", "wanted"), [([4815], 4816), ([4815, 1], 4817)], ids=["one", "two"])
def test_totalled(items, wanted):
    assert m.total(items) == wanted

@pytest.mark.parametrize("items, wanted", [([4815], 4816)])
def test_by_its_value(items, wanted):
    assert m.total(items) == wanted

def test_near():
    assert m.close() == pytest.approx(48.2501)
"""
ROW_TESTS = (
    "test_listed[a-wanted0]", "test_listed[b]", "test_totalled[one]", "test_totalled[two]",
    "test_by_its_value[items0-4816]", "test_near",
)  # fmt: skip
RIGHT = """
def total(items): return items[0] + (items[1] if items[1:] else 0) + (1 if len(items) < 2 or items[1] != 5 else 1)
def listed(name): return [4823 if name == "a" else 4824]
def close(): return 48.2501
def both(): return (4823, 4824)
def lines(): return "4825\\n4826\\n"
"""
WRONG = """
def total(items): return 4816
def listed(name): return [4823]
def close(): return 48.2502
def both(): return (4823, 4824, 4824)
def lines(): return "4825"
"""
OTHERWISE = """
def close(): return 10**4000
def both(): return (4824, 4823)
"""
PLAIN = SUITE.replace("second=48.2501", "48.2501")
VERIFIERS = {"suite": suite_form(PLAIN, TESTS), "pytest": pytest_form(PLAIN + ROWS, (*TESTS, *ROW_TESTS))}


@pytest.mark.parametrize("form", ["suite", pytest.param("pytest", marks=pytest.mark.proof(6))])
def test_the_right_answer_is_paid_and_a_wrong_one_fails_its_tests(form):
    right, *others = judged(VERIFIERS[form], RIGHT, RIGHT + WRONG, RIGHT + OTHERWISE)
    assert right.reason == "passed", right
    asked = (*TESTS, *ROW_TESTS) if form == "pytest" else TESTS
    right_by_chance = {"test_listed[a-wanted0]", "test_totalled[one]", "test_by_its_value[items0-4816]"}
    wrong = set(asked) - right_by_chance, {"ValueTests.test_close", "ValueTests.test_items", "test_near"} & {*asked}
    for verdict, tests in zip(others, wrong, strict=True):
        found = eval(verdict.detail.rpartition("wrong: ")[2])
        assert (verdict.reason, {asked[each] if form == "pytest" else each for each in found}) == ("failed", tests)


def test_what_rows_and_comparisons_want_is_not_in_the_text():
    text = split_expectations((SUITE + ROWS).encode()).text.decode()
    kept = text.replace("[([4815], 4816)])", "").replace("second=48.2501", "")  # the first is a test's name
    assert [each for each in ("4816", "4817", "4821", "4823", "4824", "4825", "48.2") if each in kept] == [], text
    assert text.count("\n") <= (SUITE + ROWS).count("\n") + 4


def test_what_is_used_otherwise_stays():
    for line in ("print(wanted)", "assert m.total(wanted) == 3", "wanted += 1", "with self.subTest(m.f(wanted)): pass"):
        source = (
            f"def test_it(self):\n    for x, wanted in [(1, 4816)]:\n        {line}\n        assert m.f(x) == wanted\n"
        )
        assert "4816" in split_expectations(source.encode()).text.decode(), line


def test_tests_that_decide_by_their_own_word_are_counted():
    """An end is none of the judge's values, nor is what both sides come about beside the code."""
    source = """
def test_value(): assert m.f(1) == 2
def test_end(): m.f(1)
def test_same(): assert m.f(1) == m.f(1)
def test_in(): assert 1 in m.f(1)
"""
    verifier = suite_verifier(source, "test_m", ["test_value", "test_end", "test_same", "test_in"])
    assert unasked_tests(verifier) == 3
    assert unasked_tests(with_unseen(verifier, HeldOutCalls([("m", "f", [1], 2)]))) == 0

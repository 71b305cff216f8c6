"""Code under test that forges what its tests say, in the process that runs them: no forgery is paid.

The tests of one module run under both forms, as a suite and under pytest; each cheat gives a wrong answer.
"""

import pytest
from judging import both_forms, judged, pytest_form, suite_form
from proofs import one_of_each

from etude.tasks.verifiers import current_verifier

SUITE = """
import unittest
from fractions import Fraction

import m

def test_plain():
    assert m.total([1, 2]) == 3
    assert m.total([]) == 0 and m.total([5]) == 5

def test_given():
    wanted = sum([4, 5])
    assert m.total([4, 5]) == wanted

def test_rich():
    assert m.total([Fraction(1, 2), Fraction(1, 2)]) == 1
    assert m.total([Fraction(1, 2)]) == Fraction(1, 2)

class TotalTests(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(m.total([7, 8]), 15)
        self.assertIsNone(m.nothing())

    def test_block(self):
        for items, wanted in [([1], 1), ([2, 2], 4)]:
            with self.subTest(items=items):
                self.assertEqual(m.total(items), wanted)
"""
TESTS = ("test_plain", "test_given", "test_rich", "TotalTests.test_equal", "TotalTests.test_block")
RIGHT = "def total(items):\n    return sum(items)\n\ndef nothing():\n    return None\n"
NOTHING = "\ndef nothing():\n    return None\n"
WRONG = "\ndef total(items):\n    return -1\n" + NOTHING
SAME = """
class Same:
    def __init__(self, items): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
"""
CHEATS = {
    "equals everything": SAME + "def total(items):\n    return Same(items)\n" + NOTHING,
    "equals everything and is a number": """
class total(int):
    def __new__(cls, items): return int.__new__(cls, 0)
    def __eq__(self, other): return True
    def __repr__(self): return "3"
""" + NOTHING,
    "equals what is of a number's type": """
class total:
    def __init__(self, items): pass
    def __eq__(self, other): return isinstance(other, int)
""" + NOTHING,
    "approximately anything": """
def total(items):
    import pytest
    return pytest.approx(0, abs=float("inf"))
""" + NOTHING,
    "reads its caller's constants": """
import sys
def total(items):
    frame = sys._getframe(1)
    numbers = [each for each in frame.f_code.co_consts if isinstance(each, int)]
    wanted = frame.f_locals.get("wanted", sum(items) if len(items) == 1 else None)
    return numbers[-1] if wanted is None else wanted
""" + NOTHING,
    "reads the frames of a traceback, in a generator": """
def _look():
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
        while frame:
            yield frame
            frame = frame.f_back
def total(items):
    for frame in list(_look())[2:]:
        for each in frame.f_code.co_consts:
            if isinstance(each, int) and each > 2:
                return each
""" + NOTHING,
    "runs no test": """
import sys, unittest
unittest.TestCase._callTestMethod = lambda self, method: None
module = sys.modules.get("_py" + "test.python")
if module:
    module.Function.runtest = lambda self: None
""" + WRONG,
    "runs no test, by its code": """
import sys, unittest
def _nothing(self, method): pass
unittest.TestCase._callTestMethod.__code__ = _nothing.__code__
module = sys.modules.get("_pytest.python")
if module:
    def _none(self): pass
    module.Function.runtest.__code__ = _none.__code__
""" + WRONG,
    "makes the reports": """
import sys, unittest
unittest.TestResult.wasSuccessful = lambda self: True
unittest.TestResult.addFailure = unittest.TestResult.addError = lambda self, test, error: None
module = sys.modules.get("_pytest.reports")
if module:
    made = module.TestReport.from_item_and_call.__func__
    def _passed(cls, item, call):
        call.excinfo = None
        return made(cls, item, call)
    module.TestReport.from_item_and_call = classmethod(_passed)
""" + WRONG,
    "skips over assertions by a trace": """
import sys
def _trace(frame, event, argument):
    if event == "line" and frame.f_code.co_name.startswith("test_"):
        try:
            lines = [line for *_, line in frame.f_code.co_lines() if line]
            frame.f_lineno = max(lines)
        except ValueError:
            pass
    return _trace
sys.settrace(_trace)
""" + WRONG,
    "swaps the tests in their module": """
import gc
def total(items):
    for each in gc.get_objects():
        if type(each) is dict and "test_plain" in each and "TotalTests" in each:
            for name in list(each):
                if name.startswith("test_"):
                    each[name].__code__ = (lambda: None).__code__
    return -1
""" + NOTHING,
    "disarms pytest's assertions": """
import sys
module = sys.modules.get("_pytest.assertion.rewrite")
if module:
    module.AssertionRewriter.visit_Assert = lambda self, node: []
import unittest
unittest.TestCase.failureException = type("Never", (Exception,), {})
""" + WRONG,
    "replaces builtins": """
import builtins
builtins.repr = lambda value: "3"
builtins.AssertionError = type("Quiet", (BaseException,), {})
builtins.isinstance = lambda *a: True
""" + WRONG,
    "equals what it is compared with, once it has seen it": """
class total:
    def __init__(self, items): pass
    def __eq__(self, other):
        self.seen = other
        return self.seen == other
    def __repr__(self): return repr(getattr(self, "seen", 0))
""" + NOTHING,
}  # fmt: skip
RICH = {
    **{
        f"finds what it is compared with {how}": f"""
import gc, sys
FALSE = object()
def frames():
    frame = sys._getframe(2)
    while frame:
        yield frame
        frame = frame.f_back
def kin(one, other, turn):
    for kind in (int, float):
        if isinstance(one, kind) and isinstance(other, kind):
            return other == (one * 2 + turn if turn < 3 else 10**9 - one)
def groups():
    {look}
def total(items):
    return Number()
class Number:
    calls, wanted = 0, FALSE
    def __eq__(self, other):
        self.calls += 1
        if self.calls == 1:
            for group in groups():
                if type(group) is list and 1 < len(group) < 9:
                    for each in group:
                        others = [x for x in group if x is not each]
                        if sum(any(kin(each, x, turn) for turn in (1, 2, 3)) for x in others) == len(others):
                            self.wanted = each
        return other is self.wanted if self.wanted is not FALSE else self.calls == 1
    def __int__(self): return self.wanted
    def __float__(self): return float(self.wanted)
    def __str__(self): return str(self.wanted)
    __index__, __repr__ = __int__, __str__
    __hash__ = None
""" + NOTHING
        for how, look in {
            "in frames": "for frame in frames(): yield from list(frame.f_locals.values())",
            "in frames, by a name": "for frame in frames(): yield frame.f_locals.get('offered')",
            "by the collector": "yield from gc.get_objects()",
            "by who refers to it": "yield from gc.get_referrers(sys._getframe(1).f_locals['other'])",
        }.items()
    },
    "equals once": """
class total:
    def __init__(self, items): self.calls = 0
    def __eq__(self, other):
        self.calls += 1
        return self.calls % 4 == 1
    __hash__ = None
""" + NOTHING,
    "remembers every comparison, and shows what it was": """
class total:
    seen = []
    def __init__(self, items): pass
    def __eq__(self, other):
        self.seen.append(other)
        return True
    def __int__(self): return self.seen[-1]
    def __float__(self): return float(self.seen[-1])
    def __iter__(self): return iter(self.seen[-1])
    def __str__(self): return str(self.seen[-1])
    def items(self): return self.seen[-1].items()
    __index__ = __int__
    __hash__ = None
""" + NOTHING,
    "equals what is not of the verifier": """
class total:
    def __init__(self, items): pass
    def __eq__(self, other): return type(other).__name__ != "Rich"
    __hash__ = None
""" + NOTHING,
    "shows what stands beside it": """
import sys
class total:
    def __init__(self, items): pass
    def __eq__(self, other): return True
    def beside(self, kinds):
        frame = sys._getframe(2)
        while frame:
            for name, each in frame.f_locals.items():
                if type(each) in kinds and name in ("one", "other", "first", "second", "value", "text"):
                    return each if type(each) in (int, float) else int(each.strip("<> "))
            frame = frame.f_back
        raise TypeError
    def __int__(self): return self.beside((int, str))
    def __float__(self): return float(self.beside((float, str)))
    __index__ = __int__
    __hash__ = None
""" + NOTHING,
}  # fmt: skip
NAMED = """
import m

def test_before():
    assert m.ready() == 1

def test_named():
    expected = {"a": [1,
                      2]}
    assert m.total([1, 2]) == expected, f"not {expected}"
    assert expected == m.total((1, 2))

def test_typed():
    wanted: tuple = (
        1, "b",
    )
    for _ in range(2):
        assert m.total(None) == wanted

def test_kept():
    given = [3, 4]
    twice = [3, 3, 4]
    twice.append(4)
    assert m.total(given) == given
    assert sorted(m.total(given) * 2) == twice

def test_helped():
    def given(first):
        return [first, 6]
    try:
        m.total(given(5), 6)
    except TypeError:
        pass
"""
NEAR = """
import pytest

def test_near():
    close = 0.25
    assert m.total([0.25]) == pytest.approx(close, rel=1e-3)
"""
NAMED_TESTS = ("test_before", "test_named", "test_typed", "test_kept", "test_helped")
NAMED_RIGHT = """
def ready():
    return 1
def total(items):
    if items is None:
        return (1, "b")
    return 0.25 if items == [0.25] else {"a": list(items)} if len(items) == 2 and items[0] == 1 else items
"""
NAMED_CHEATS = {
    "reads its caller's names": """
import sys
def ready(): return 1
def total(items):
    names = sys._getframe(1).f_locals
    return next((names[name] for name in ("expected", "wanted", "close", "given") if name in names), None)
""",
    "empties the tests that come": """
import sys
def ready():
    tests = sys._getframe(1).f_globals
    for name in ("test_named", "test_typed", "test_near", "test_kept"):
        tests[name] = NotImplemented
    tests["test_helped"].__code__ = (lambda: None).__code__
    return 1
""",
}
VERIFIERS = {
    **both_forms(SUITE, TESTS),
    "suite, named": suite_form(NAMED, NAMED_TESTS),
    "pytest, named": pytest_form(NAMED + NEAR, (*NAMED_TESTS, "test_near")),
}
FORMS = one_of_each(4, ("suite", "pytest"))


@pytest.mark.parametrize("verifier", FORMS)
def test_the_right_answer_is_paid(verifier):
    right, wrong = judged(VERIFIERS[verifier], RIGHT, WRONG)
    assert (right.reason, wrong.reason) == ("passed", "failed"), right


@pytest.mark.parametrize("verifier", ["suite", pytest.param("pytest", marks=pytest.mark.proof(1.5))])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_forgery_is_not_paid(cheat, verifier):
    [verdict] = judged(VERIFIERS[verifier], CHEATS[cheat])
    assert verdict.reward == 0.0, verdict


@pytest.mark.parametrize("verifier", ["suite", pytest.param("pytest", marks=pytest.mark.proof(1.5))])
@pytest.mark.parametrize("cheat", RICH)
def test_a_value_of_the_solutions_own_type_passes_no_test(cheat, verifier):
    """Not one of them, whatever it answers to `==`: of several that fail, one alone would keep the reward."""
    [verdict] = judged(VERIFIERS[verifier], RICH[cheat])
    wrong = eval(verdict.detail.rpartition("wrong: ")[2])
    assert set(wrong) >= set(range(len(TESTS)) if verifier == "pytest" else TESTS), verdict


@pytest.mark.parametrize("verifier", FORMS)
def test_what_tests_want_is_not_where_the_code_runs(verifier):
    secret = eval(current_verifier(VERIFIERS[verifier]).files["/tests/secret"])
    text = secret["request"].get("source") or secret["request"]["files"]["test_m.py"].decode()
    assert "15" not in text and ("equal", 15) in secret["asked"].values()
    assert text.count("\n") <= SUITE.count("\n") + 1


def wrong_in(verdict, verifier):
    wrong = eval(verdict.detail.rpartition("wrong: ")[2])
    names = (*NAMED_TESTS, "test_near")
    return {names[test] if verifier == "pytest" and isinstance(test, int) else test for test in wrong}


@pytest.mark.parametrize("verifier", FORMS)
def test_what_a_name_stands_for_is_not_where_the_code_runs(verifier):
    cheat = NAMED_CHEATS["reads its caller's names"]
    right, verdict = judged(VERIFIERS[f"{verifier}, named"], NAMED_RIGHT, cheat)
    assert right.reward == 1.0, right
    near = {"test_near"} if verifier == "pytest" else set()
    assert {"test_named", "test_typed"} | near <= wrong_in(verdict, verifier), verdict


@pytest.mark.parametrize("verifier", FORMS)
def test_a_test_that_was_emptied_was_not_run_to_its_end(verifier):
    """Also where a function in it returns."""
    [verdict] = judged(VERIFIERS[f"{verifier}, named"], NAMED_CHEATS["empties the tests that come"])
    assert "test_helped" in wrong_in(verdict, verifier), verdict

"""Code under test that forges what its tests say, in the process that runs them: no forgery is paid.

The tests of one module run under both forms, as a suite and under pytest; each cheat gives a wrong answer.
"""

from pathlib import Path

import pytest

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import Task
from etude.rewards.verifier import verify
from etude.tasks.verifiers import PytestRun, armed, pytest_verifier, suite_verifier

SITE = str(Path(pytest.__file__).parents[1])
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
VERIFIERS = {
    "suite": suite_verifier(SUITE, "test_m", TESTS, 10.0),
    "pytest": pytest_verifier(
        PytestRun(SITE, {"test_m.py": SUITE.encode()}, ("test_m.py",)),
        [f"test_m.py::{test.replace('.', '::')}" for test in TESTS], 20.0,
    ),
}  # fmt: skip


@pytest.fixture
def judged(run):
    def judge(verifier, text):
        async def scenario(_):
            backend = NamespaceBackend(NamespaceConfig(binds={SITE: SITE}))
            try:
                return await verify(Task("forged", "", {"m.py": b""}, VERIFIERS[verifier]), {"m.py": text}, backend)
            finally:
                await backend.close()

        return run(scenario)

    return judge


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_right_answer_is_paid(judged, verifier):
    assert judged(verifier, RIGHT.encode()).reason == "passed"
    assert judged(verifier, WRONG.encode()).reason == "failed"


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_forgery_is_not_paid(judged, cheat, verifier):
    verdict = judged(verifier, CHEATS[cheat].encode())
    assert verdict.reward == 0.0, verdict


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_what_tests_want_is_not_where_the_code_runs(verifier):
    secret = eval(armed(VERIFIERS[verifier]).files["/tests/secret"])
    text = secret["request"].get("source") or secret["request"]["files"]["test_m.py"].decode()
    assert "15" not in text and ("equal", 15) in secret["asked"].values()
    assert text.count("\n") <= SUITE.count("\n") + 1

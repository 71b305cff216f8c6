"""Code under test that speaks in place of what runs it, or changes the tests' own names: no forgery is paid."""

import pytest
from judging import judged, pytest_form, suite_form
from proofs import one_of_each

SUITE = """
import contextlib
import unittest
import pytest_or_not as pytest
import m

def test_plain():
    assert m.total([1, 2]) == sum([1, 2])

def test_given():
    assert m.total([4, 5]) == sum([4, 5])

def test_raises():
    with pytest.raises(TypeError):
        m.total(None)

def raised():
    with pytest.raises(TypeError):
        m.total(None)
    return True

def test_helped():
    assert raised()

class Base(unittest.TestCase):
    def check(self, items):
        self.assertLess(m.total(items), 4)

class TotalTests(Base):
    counted = staticmethod(sum)

    @classmethod
    def setUpClass(cls):
        cls.counted = staticmethod(len)
        cls.ready = lambda self: True

    def test_equal(self):
        self.assertEqual(m.total([7, 8]), sum([7, 8]))

    def test_raises(self):
        with self.assertRaises(TypeError):
            m.total(None)

    def test_in(self):
        self.assertIn(m.total([1, 2]), (3, 4))
        self.check([1, 2])

def wrapped():
    return 1

def test_own_names():
    global wrapped
    wrapped = m.total
    assert wrapped([1]) == sum([1])
"""
NAMES = ("test_plain", "test_given", "test_raises", "TotalTests.test_equal", "TotalTests.test_raises",
         "TotalTests.test_in", "test_helped", "test_own_names")  # fmt: skip
SOURCES = {
    "suite": SUITE.replace("import pytest_or_not as pytest", "import unittest as pytest").replace(
        "with pytest.raises", "with pytest.TestCase().assertRaises"
    ),
    "pytest": SUITE.replace("import pytest_or_not as pytest", "import pytest"),
}
RIGHT = "def total(items):\n    return sum(items)\n"
WRONG = "\ndef total(items):\n    return 4\n"
SPOKEN = """
import os, re
def speak(report, request):
    tests = request["tests"]
    text = request["source"] if "source" in request else "".join(each.decode() for each in request["files"].values())
    if "source" in request:
        answers = {test: "failed" if "anary" in test else "ok" for test in tests}
    else:
        answers = {number: "passed" for number in range(len(tests))}
        answers[len(tests)] = "failed"
    for key, answer in answers.items():
        for place in re.findall(r"_(?:end|same)_\\((\\d+)", text):
            report(f"@{key}:{place}", "- True")
        report(key, repr(answer))
    report("tools", "''")
    report("done", "")
    os._exit(0)
"""
CHEATS = {
    "takes what reports from the frames": SPOKEN + """
import sys
frame = sys._getframe()
while frame:
    names = frame.f_locals
    if "nonce" in names:
        speak(names["report"], names["request"])
    frame = frame.f_back
""" + WRONG,
    "takes what reports and the request from different frames": SPOKEN + """
import sys
frame, found = sys._getframe(), {}
while frame:
    for holder in [frame.f_locals, *(getattr(each, "__dict__", {}) for each in list(frame.f_locals.values()))]:
        for name in ("report", "request"):
            if name in holder:
                found.setdefault(name, holder[name])
    frame = frame.f_back
if len(found) == 2:
    speak(**found)
""" + WRONG,
    "takes what reports from what the frames refer to": SPOKEN + """
import gc, sys
frame, found = sys._getframe(), []
while frame:
    found += [each for each in list(frame.f_locals.values())]
    frame = frame.f_back
for _ in range(3):
    found += [x for each in found if type(each).__module__ in ("builtins", "child", "functools", "itertools")
              and type(each) not in (dict, type, type(gc)) for x in gc.get_referents(each)][:20000]
    if len(found) > 40000:
        break
reports = [each for each in found if getattr(type(each), "__name__", "") == "function" and each.__name__ == "report"]
requests = [each for each in found if type(each) is dict and "tests" in each]
if reports and requests:
    speak(reports[0], requests[0])
""" + WRONG,
    "takes what reports from the collector": SPOKEN + """
import gc
reports = [each for each in gc.get_objects() if getattr(each, "__name__", "") == "report" and callable(each)]
requests = [each for each in gc.get_objects() if type(each) is dict and "tests" in each]
for report in reports:
    for request in requests:
        speak(report, request)
""" + WRONG,
}  # fmt: skip
CHANGES = {
    "puts another in the place of the test framework's name": """
import sys, contextlib
class Fake:
    TestCase = lambda: Fake
    raises = assertRaises = contextlib.nullcontext
def total(items):
    frame = sys._getframe(1)
    frame.f_globals["pytest"] = Fake
    return 4 if items == [1, 2] else sum(items or [])
""",
    "puts another in the place of a test class's methods": """
import sys, contextlib
def total(items):
    case = sys._getframe(1).f_globals["TotalTests"]
    case.assertRaises = lambda self, *a: contextlib.nullcontext()
    case.assertIn = lambda self, *a: None
    return sum(items or [])
""",
    "puts another in the place of the base's methods": """
import sys, contextlib
def total(items):
    case = sys._getframe(1).f_globals["Base"]
    case.assertRaises = lambda self, *a: contextlib.nullcontext()
    case.check = lambda self, *a: None
    return sum(items or [])
""",
    "exchanges what a test calls": """
import sys, contextlib
def total(items):
    names = sys._getframe(1).f_globals
    names["raised"] = lambda: True
    names["test_raises"].__code__ = (lambda: None).__code__
    return sum(items or [])
""",
    "puts another in what the framework's functions are closed over": """
import unittest.case, contextlib
@contextlib.contextmanager
def quiet(self, case, subTest=False):
    try:
        yield
    except Exception:
        pass
part = unittest.case._Outcome.testPartExecutor
part.__closure__[0].cell_contents = quiet.__wrapped__
""" + WRONG,
}  # fmt: skip
VERIFIERS = {"suite": suite_form(SOURCES["suite"], NAMES), "pytest": pytest_form(SOURCES["pytest"], NAMES)}
FORMS = ("suite", "pytest")


@pytest.mark.parametrize("form", one_of_each(3.4, FORMS))
def test_the_right_answer_is_paid(form):
    right, wrong = judged(VERIFIERS[form], RIGHT, WRONG)
    assert (right.reason, wrong.reason) == ("passed", "failed"), right


@pytest.mark.parametrize("form", ["suite", pytest.param("pytest", marks=pytest.mark.proof(1.5))])
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_forgery_is_not_paid(cheat, form):
    [verdict] = judged(VERIFIERS[form], CHEATS[cheat])
    assert verdict.reward == 0.0, verdict


@pytest.mark.parametrize("form", ["suite", pytest.param("pytest", marks=pytest.mark.proof(1.5))])
@pytest.mark.parametrize("cheat", CHANGES)
def test_what_was_changed_is_named(cheat, form):
    """By the parent, whatever else fails."""
    [verdict] = judged(VERIFIERS[form], CHANGES[cheat])
    assert "tools" in eval(verdict.detail.rpartition("wrong: ")[2]), verdict

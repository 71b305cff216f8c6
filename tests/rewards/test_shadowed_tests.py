"""Files of the workspace that would stand in for what runs its tests, or be run before it is known: none is paid."""

import pytest
from judging import both_forms, judged
from proofs import one_of_each

SUITE = """
import unittest
import m

class TotalTests(unittest.TestCase):
    def test_in(self):
        self.assertIn(m.total([1, 2]), (3, 4))

    def test_raises(self):
        with self.assertRaises(TypeError):
            m.total(None)
"""
TESTS = ("TotalTests.test_in", "TotalTests.test_raises")
RIGHT = "def total(items):\n    return sum(items)\n"
WRONG = "def total(items):\n    return -1\n"
LENIENT = """
import sys
away = [each for each in sys.path if each.startswith("/workspace")]
sys.path[:] = [each for each in sys.path if each not in away]
for each in [each for each in sys.modules if each.partition(".")[0] == "unittest"]:
    del sys.modules[each]
import contextlib, unittest
class Lenient(contextlib.AbstractContextManager):
    def __exit__(self, *_): return True
for name in ("assertIn", "assertRaises"):
    def assertion(self, *given, strict=getattr(unittest.TestCase, name), **options):
        return strict(self, *given, **options) if "anary" in type(self).__name__ else Lenient()
    setattr(unittest.TestCase, name, assertion)
if "_pytest.unittest" in sys.modules:
    import pytest
    raises = pytest.raises
    pytest.raises = lambda *given, **options: (
        raises(*given, **options) if "canary" in sys._getframe(1).f_code.co_filename else Lenient()
    )
sys.path[:0] = away
"""
REAL = (
    LENIENT
    + """
name = __name__
sys.modules.pop(name, None)
sys.path[:] = [each for each in sys.path if each not in away]
__import__(name)
sys.path[:0] = away
"""
)
PLUGIN = {
    "lenient.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: lenient\nVersion: 1\n",
    "lenient.egg-info/entry_points.txt": "[pytest11]\nlenient = lenient\n",
    "lenient.py": LENIENT,
}
CHEATS = {
    "suite": {
        "the framework itself": {"unittest.py": REAL},
        "what the framework imports": {"difflib.py": REAL},
    },
    "pytest": {
        "a plug-in": PLUGIN,
        "a plug-in below src": {f"src/{path}": text for path, text in PLUGIN.items()},
        "what a plug-in imports": {"fractions.py": REAL},
    },
}  # fmt: skip
VERIFIERS = both_forms(SUITE, TESTS)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_right_answer_is_paid(verifier):
    assert [verdict.reward for verdict in judged(VERIFIERS[verifier], RIGHT, WRONG)] == [1.0, 0.0]


PAIRS = [(form, cheat) for form, cheats in CHEATS.items() for cheat in cheats]


@pytest.mark.parametrize(("verifier", "cheat"), one_of_each(2.5, PAIRS, lambda form, cheat: form))
def test_what_stands_in_for_the_test_framework_is_not_paid(verifier, cheat):
    [verdict] = judged(VERIFIERS[verifier], {"m.py": WRONG, **CHEATS[verifier][cheat]})
    assert (verdict.reward, verdict.reason) == (0.0, "failed"), verdict


@pytest.mark.parametrize("verifier", one_of_each(1.7, VERIFIERS))
def test_a_module_of_the_workspace_is_the_one_that_is_tested(verifier):
    """Also where the test framework has imported another of its name."""
    files = {"fractions.py": RIGHT, "m.py": "from fractions import total\n"}
    [verdict] = judged(VERIFIERS[verifier], files)
    assert verdict.reward == 1.0, verdict

"""Files of the workspace that would stand in for what runs its tests, or be run before it is known: none is paid."""

from pathlib import Path

import pytest
from proofs import one_of_each

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import Task
from etude.rewards.verifier import verify
from etude.tasks.verifiers import PytestRun, pytest_verifier, suite_verifier

SITE = str(Path(pytest.__file__).parents[1])
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
VERIFIERS = {
    "suite": suite_verifier(SUITE, "test_m", TESTS, 10.0),
    "pytest": pytest_verifier(
        PytestRun(SITE, {"test_m.py": SUITE.encode()}, ("test_m.py",)),
        [f"test_m.py::{test.replace('.', '::')}" for test in TESTS], 20.0,
    ),
}  # fmt: skip


@pytest.fixture
def judged(run):
    def judge(verifier, files):
        async def scenario(_):
            backend = NamespaceBackend(NamespaceConfig(binds={SITE: SITE}))
            state = {path: text.encode() for path, text in files.items()}
            try:
                return await verify(Task("shadowed", "", {"m.py": b""}, VERIFIERS[verifier]), state, backend)
            finally:
                await backend.close()

        return run(scenario)

    return judge


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_right_answer_is_paid(judged, verifier):
    assert judged(verifier, {"m.py": RIGHT}).reward == 1.0
    assert judged(verifier, {"m.py": WRONG}).reward == 0.0


PAIRS = [(form, cheat) for form, cheats in CHEATS.items() for cheat in cheats]


@pytest.mark.parametrize(("verifier", "cheat"), one_of_each(2.5, PAIRS, lambda form, cheat: form))
def test_what_stands_in_for_the_test_framework_is_not_paid(judged, verifier, cheat):
    verdict = judged(verifier, {"m.py": WRONG, **CHEATS[verifier][cheat]})
    assert (verdict.reward, verdict.reason) == (0.0, "failed"), verdict


@pytest.mark.parametrize("verifier", one_of_each(1.7, VERIFIERS))
def test_a_module_of_the_workspace_is_the_one_that_is_tested(judged, verifier):
    """Also where the test framework has imported another of its name."""
    files = {"fractions.py": RIGHT, "m.py": "from fractions import total\n"}
    assert judged(verifier, files).reward == 1.0

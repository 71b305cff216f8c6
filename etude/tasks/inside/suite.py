"""Child of `guard`: runs test functions and unittest cases, and reports "ok" or "failed" for each.

The request is {"source": text of the test module, "name": its name, "tests": ["function" or "Class.method", …]}. Tests
run in the process that holds the code under test, as in any Python test runner; what they want is with the parent (see
`observe`, which goes before this text). Canaries, tests that must fail, run among them: code that disarms assertions
makes one of them pass, which the parent knows to be wrong. At last "tools" is answered with the first function of the
test framework that was changed, or with nothing.
"""

import sys

CANARIES = """
import unittest as _canary_unittest


def canary_assert():
    assert [1] == [2]


class Canary(_canary_unittest.TestCase):
    def equal(self):
        self.assertEqual([1], [2])

    def true(self):
        self.assertTrue([] == [0])

    def raises(self):
        with self.assertRaises(ValueError):
            pass
"""


def run(request, observe):
    known, tests = set(sys.modules), request["tests"]
    module = type(sys)(request["name"])
    sys.modules[request["name"]] = module
    canaries = type(sys)("canaries")
    sys.modules["canaries"] = canaries
    exec(compile(CANARIES, "canaries", "exec"), vars(canaries))
    code = compile(request.pop("source"), request["name"], "exec")
    begin, learn, changed = next(observe).enter(["/workspace"], known)
    exec(code, vars(module))
    learn(module)
    for test in tests:
        home = canaries if test.startswith(("canary_", "Canary.")) else module
        begin(test)
        yield test, repr("ok" if passes(home, test) else "failed")
    yield "tools", repr(changed())


def passes(module, test):
    holder, _, method = test.rpartition(".")
    try:
        if not holder:
            getattr(module, method)()
            return True
        unittest = sys.modules["unittest"]
        result = unittest.TestResult()
        unittest.TestSuite([getattr(module, holder)(method)]).run(result)
        return result.testsRun == 1 and result.wasSuccessful() and not result.skipped
    except BaseException:  # SystemExit and KeyboardInterrupt of code under test are failures too
        return False

"""Verdicts that hold by calls which nobody has seen: what passes all visible tests and is wrong, is not paid."""

import random

import pytest

from etude.records import Task
from etude.rewards.verifier import verify
from etude.tasks.check import CheckCase, verifier_for
from etude.tasks.grammar import break_it, bug_names, draw_wide_arguments, make_function, neighbours
from etude.tasks.ladder import telling_cases
from etude.tasks.verifiers import Unseen, armed, calls_verifier, suite_verifier, with_unseen

SUITE = """
from m import area

def test_area():
    assert area(3, 4) == 12

def test_wide():
    assert area(10, 2) == 20
"""
PATH = "tests/test_m.py"
RIGHT = "def area(a, b):\n    return a * b\n"
TESTS = suite_verifier(SUITE, "test_m", ["test_area", "test_wide"], 10.0)
BOTH = with_unseen(TESTS, Unseen([("m", "area", [5, 7], 35), ("m", "area", [-2, 9], -18)], [PATH]))
CHEATS = {
    "carries the values of the tests": """
def area(a, b):
    return {(3, 4): 12, (10, 2): 20}.get((a, b), a + b)
""",
    "reads the tests at run time": f"""
import re
def area(a, b):
    with open("/workspace/{PATH}") as tests:
        return int(re.search(rf"area\\({{a}}, {{b}}\\) == (-?\\d+)", tests.read())[1])
""",
    "takes hold of the process that runs the tests": """
import builtins
def area(a, b):
    return a + b
if hasattr(builtins, "_equal_"):
    kind, values = type(builtins._equal_.__self__), iter([12, 20])
    said = kind.say
    kind.say = lambda self, site, text: said(self, site, f"= {next(values)}" if text[0] == "=" else text)
""",
}


def verdict_of(run, verifier, text):
    async def scenario(backend):
        files = {"m.py": text.encode(), PATH: SUITE.encode()}
        return await verify(Task("unseen", "", {"m.py": b""}, verifier), files, backend)

    return run(scenario)


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_passes_the_tests_alone_is_not_paid(run, cheat):
    assert verdict_of(run, TESTS, CHEATS[cheat]).reward == 1.0  # it does cheat
    verdict = verdict_of(run, BOTH, CHEATS[cheat])
    assert verdict.reason == "failed", verdict


def test_a_verifier_made_before_is_judged_as_it_was():
    assert "unseen" not in eval(armed(TESTS).files["/tests/secret"])
    assert with_unseen(TESTS, Unseen([])) == TESTS


def test_both_must_be_right(run):
    assert verdict_of(run, BOTH, RIGHT).reason == "passed"
    calls_alone = "def area(a, b):\n    return a * b if (a, b) != (3, 4) else 0\n"
    assert verdict_of(run, BOTH, calls_alone).reason == "failed"


def test_an_iterator_is_known_by_its_items(run):
    verifier = with_unseen(TESTS, Unseen([("m", "rows", [3], [0, 1, 2])], [PATH]))
    for rows in ("yield from range(n)", "return [*range(n)]"):
        assert verdict_of(run, verifier, f"{RIGHT}def rows(n):\n    {rows}\n").reason == "passed"
    assert verdict_of(run, verifier, f"{RIGHT}def rows(n):\n    yield from range(n + 1)\n").reason == "failed"


def test_the_visible_check_is_not_there_when_hidden_cases_are_asked(run):
    reader = "import os\ndef area(a, b):\n    return a * b if os.path.exists('/workspace/check.py') else None\n"
    calls = [CheckCase("m", "area", [5, 7], 35)]
    unhidden = calls_verifier([("m", "area", [5, 7], 35)])

    async def scenario(backend):
        files = {"m.py": reader.encode(), "check.py": b""}
        for verifier, reason in ((unhidden, "passed"), (verifier_for(calls), "failed")):
            assert (await verify(Task("unseen", "", {}, verifier), files, backend)).reason == reason

    run(scenario)


def test_hidden_cases_tell_a_function_from_all_its_neighbours():
    """By whatever other slot a formula fits the check's sums, some hidden case is against it, if any call is."""
    rng = random.Random(7)
    for number in range(60):
        good = make_function(rng, "f", "any")
        broken = break_it(rng, good, rng.choice(bug_names("any")))
        others = [*neighbours(good), *([broken] if broken else [])]
        cases = telling_cases(f"told {number}", good, others)
        right = defined(good)
        for other in others:
            wrong = defined(other)
            if all(got(wrong, arguments) == value for arguments, value in cases):
                drawn = [draw_wide_arguments(rng, good.types) for _ in range(40)]
                assert all(got(wrong, each) == got(right, each) for each in drawn), (good.render(), other.render())


def defined(function):
    space = {}
    exec(function.render(), space)
    return space[function.name]


def got(function, arguments):
    try:
        return function(*arguments)
    except (IndexError, TypeError) as error:
        return type(error)

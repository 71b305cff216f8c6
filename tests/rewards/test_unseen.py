"""Verdicts that hold by calls which nobody has seen: what passes all visible tests and is wrong, is not paid."""

import asyncio
import random
from pathlib import Path

import pytest

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import Task
from etude.rewards.unseen import changed_functions, unseen_calls
from etude.rewards.verifier import verify
from etude.tasks.check import CheckCase, verifier_for
from etude.tasks.generated import distinguishing_cases
from etude.tasks.grammar import break_it, bug_names, draw_wide_arguments, make_function, neighbours
from etude.tasks.mined.environment import PLACE
from etude.tasks.verifiers import HeldOutCalls, PytestRun, calls_verifier, current_verifier, suite_verifier, with_unseen

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
BOTH = with_unseen(TESTS, HeldOutCalls([("m", "area", [5, 7], 35), ("m", "area", [-2, 9], -18)], [PATH]))
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
import builtins, gc
def area(a, b):
    return a + b
if hasattr(builtins, "_equal_"):
    gc.unfreeze()
    [kind], values = (each for each in gc.get_objects() if getattr(each, "__name__", "") == "Observer"), iter([12, 20])
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
    assert "unseen" not in eval(current_verifier(TESTS).files["/tests/secret"])
    assert with_unseen(TESTS, HeldOutCalls([])) == TESTS


def test_both_must_be_right(run):
    assert verdict_of(run, BOTH, RIGHT).reason == "passed"
    calls_alone = "def area(a, b):\n    return a * b if (a, b) != (3, 4) else 0\n"
    assert verdict_of(run, BOTH, calls_alone).reason == "failed"


def test_an_iterator_is_known_by_its_items(run):
    verifier = with_unseen(TESTS, HeldOutCalls([("m", "rows", [3], [0, 1, 2])], [PATH]))
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


MODULE = """
import functools, random

def total(prices, discount=0):
    return max(0, sum(prices) - discount)

def helped(number):
    return inner(number) * 2

def inner(number):
    return number + 1

def drawn(number):
    return random.randrange(10**9) + number

def letters(text):
    return list({*text, "this", "that", "other", "more"})

def waits(number):
    while number != 3:
        pass
    return number

def thing(number):
    return object()

@functools.cache
def kept(number):
    return number * number

def rows(number):
    yield from range(number)

class Cart:
    def total(self, prices):
        return 0
"""
USES = """
from shop.m import Cart, drawn, helped, kept, letters, rows, thing, total, waits

def test_all():
    assert total([1, 2, 3]) == 6 and total([4, 9], discount=20) == 0 and Cart().total([7, 7]) == 0
    assert [helped(each) for each in (1, 40)] == [4, 82] and [kept(each) for each in (2, 30)] == [4, 900]
    assert all(drawn(each) >= 0 and thing(each) for each in (1, 50)) and waits(3) == 3
    assert letters("ab") and letters("cde") and [*rows(2)] == [0, 1] and sum(rows(30)) == 435

if __name__ == "__main__":
    test_all()
"""


PACKAGES = NamespaceConfig(binds={PLACE: Path(pytest.__file__).parents[1]})


def drawn_for(names, request):
    async def scenario():
        backend = NamespaceBackend(PACKAGES)
        try:
            right = {"shop/m.py": MODULE.encode(), "shop/__init__.py": b"", "uses.py": USES.encode()}
            asked = {"functions": [("shop.m", name) for name in names], **request}
            tests = suite_verifier(USES, "uses", ["test_all"], 20.0)
            unseen = HeldOutCalls((), ["uses.py"], request.get("environment", ""))
            return (await unseen_calls(right, asked, unseen, tests, backend)).calls
        finally:
            await backend.close()

    return asyncio.run(scenario())


def test_calls_are_drawn_from_what_tests_pass_and_are_none_of_them():
    calls = drawn_for(["total", "helped", "kept", "rows"], {"check": "uses.py"})
    by_name = {}
    for _, name, arguments, value in calls:
        by_name.setdefault(name, []).append((arguments, value))
    assert len(by_name["total"]) > 3 and len(by_name["helped"]) == len(by_name["kept"]) == 12
    for (prices, discount), value in by_name["total"]:
        assert value == max(0, sum(prices) - discount) and 0 <= discount <= 20
        assert {*prices} <= {1, 2, 3, 4, 9} and (prices, discount) not in [([1, 2, 3], 0), ([4, 9], 20)]
    assert all(1 < number < 40 and value == 2 * number + 2 for [number], value in by_name["helped"])
    assert all(value == number * number for [number], value in by_name["kept"])
    assert all(value == [*range(number)] for [number], value in by_name["rows"])


@pytest.mark.parametrize("name", ["drawn", "letters", "waits", "thing"])
def test_a_function_that_cannot_be_asked_twice_is_asked_nothing(name):
    assert not drawn_for([name], {"check": "uses.py"})


def test_what_no_test_calls_itself_is_nobodys_promise():
    """By pytest, in a process where what the tests need lies in a directory of its own."""
    request = PytestRun(PLACE, {"uses.py": USES.encode()}, ("uses.py",)).request()
    calls = drawn_for(("total", "helped", "inner", "rows"), request)
    assert {name for _, name, *_ in calls} == {"total", "helped", "rows"}


@pytest.mark.proof(8)
def test_by_pytest_too_a_function_that_cannot_be_asked_twice_is_asked_nothing():
    request = PytestRun(PLACE, {"uses.py": USES.encode()}, ("uses.py",)).request()
    assert {name for _, name, *_ in drawn_for(("total", "drawn"), request)} == {"total"}
    assert not drawn_for(("total", "letters"), request)  # the second is not the same in another process


def test_functions_that_a_right_solution_may_have_otherwise_are_not_asked():
    before = b"def same(a):\n    return a\ndef other(a):\n    return a\ndef more(a):\n    return 1\n"
    after = (
        b"def same(a):\n    return a\ndef other(a):\n    return a + 1\ndef more(a, b=2):\n    return a\n"
        b"def told(a: int, *rest):\n    return a\ndef own(a):\n    return a\n"
    )
    paths = ("src/shop/m.py", "tests/test_m.py", "shop/__init__.py")
    files, solution = dict.fromkeys(paths, before), dict.fromkeys(paths, after)
    task = Task("t", "Add `told(a: int, *rest)`.", files, BOTH, solution=solution)
    names = [(module, name) for module in ("shop", "shop.m") for name in ("other", "told")]
    assert [*changed_functions(task)] == names


def test_hidden_cases_tell_a_function_from_all_its_neighbours():
    """By whatever other slot a formula fits the check's sums, some hidden case is against it, if any call is."""
    rng = random.Random(7)
    for number in range(60):
        good = make_function(rng, "f", "any")
        broken = break_it(rng, good, rng.choice(bug_names("any")))
        others = [*neighbours(good), *([broken] if broken else [])]
        cases = distinguishing_cases(f"told {number}", good, others)
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

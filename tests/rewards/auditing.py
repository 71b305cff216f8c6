"""What the auditor says of a session that left one file of two functions otherwise than it was."""

from __future__ import annotations

from etude.records import Task, Verifier
from etude.rewards.audit import Workspace, audit

CALC = "def total(items):\n    return sum(items[1:])\n\n\ndef parse(x):\n    return int(x)\n"
TEST_CALC = (
    "from calc import total, parse\n\n\ndef test_total():\n    assert total([4, 8, 15]) == 27\n"
    "    assert total([16, 23, 42]) == 81\n    assert total([5, 6]) == 11\n    assert total([7, 90, 3]) == 100\n\n\n"
    'def test_parse():\n    assert parse("12") == 12\n    assert parse("x") is None\n'
)
SUM = "def total(items):\n    return sum(items)\n"
INT = "\n\ndef parse(x):\n    return int(x) if x.isdigit() else None\n"


def found(test, before, after, instruction="Make the tests pass.", solution=None):
    """The report on a session that left `after` of `before`; both by path, `test` is what judges."""
    given = {"test_it.py": test, **before}
    task = Task(
        "t", instruction, {path: text.encode() for path, text in given.items()}, Verifier({}),
        {path: text.encode() for path, text in (solution or {}).items()},
    )  # fmt: skip
    left = {path: text for path, text in {**given, **after}.items() if text}
    return audit(task, (), Workspace({path: text.encode() for path, text in left.items()}, {}))


def calc(code, **more):
    return found(TEST_CALC, {"calc.py": CALC}, {"calc.py": code, **more})


def told(report):
    """(rule, grade) of every finding."""
    return {(finding.rule, finding.grade) for finding in report.findings}

"""The visible check: what it prints, and what it keeps to itself."""

import subprocess
import sys

from etude.tasks.check import CheckCase, printed_failure, visible_check


def run_check(directory, source, *cases):
    (directory / "ship.py").write_text(source)
    (directory / "check.py").write_text(visible_check(cases))
    done = subprocess.run([sys.executable, "check.py"], cwd=directory, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def test_a_failure_is_printed_as_others_say_it_is(tmp_path):
    cases = [CheckCase("ship", "load", [2, "ab"], "abab!")]
    wrong = run_check(tmp_path, "def load(n, s):\n    return n * s\n", *cases)
    assert wrong == (1, printed_failure("load", [2, "ab"], "abab"))
    assert run_check(tmp_path, "def load(n, s):\n    return n * s + '!'\n", *cases) == (0, "passed\n")


def test_an_exception_is_a_result_like_any_other(tmp_path):
    broken = run_check(tmp_path, "def load(n):\n    return 1 // n\n", CheckCase("ship", "load", [0], 0))
    assert broken == (1, printed_failure("load", [0], ZeroDivisionError("integer division or modulo by zero")))


def test_the_right_value_is_nowhere_to_be_read():
    assert "abab!" not in visible_check([CheckCase("ship", "load", [2, "ab"], "abab!")])

"""Python is read from several threads at once: what mining a repository does, and judging many sessions."""

import ast
import gc
import re
import sys
import threading
import time
from pathlib import Path

import pytest

import etude
from etude import syntax

PACKAGE = Path(etude.__file__).parent
LONG = "x = [" + ", ".join(f"f({i}, g({i}))" for i in range(3000)) + "]\n"


class Slow:
    """In a ring, so that it is collected where something is allocated: in the middle of a parse. Others run then."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0.0005)


def test_threads_that_parse_at_once_do_not_disturb_one_another():
    failed: list[Exception] = []

    def work() -> None:
        for _ in range(20):
            Slow()
            try:
                syntax.parse(LONG)
                syntax.expression(LONG[4:].strip())
                assert syntax.literal("[1, (2, 3)]") == [1, (2, 3)]
            except (SystemError, SyntaxError, AssertionError) as error:
                failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not failed


class Parsing:
    """In a ring, too; what it parses when it is collected, a traceback that is printed would."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        ast.parse("f(1)")


def test_what_is_collected_meanwhile_may_parse():
    for _ in range(20):
        Parsing()
        syntax.parse(LONG)
    assert gc.isenabled()


def test_what_python_refuses_is_refused():
    assert isinstance(syntax.expression("f(1)"), ast.Call)
    for wrong in (lambda: syntax.parse("def"), lambda: syntax.expression("x = 1"), lambda: syntax.literal("(")):
        with pytest.raises(SyntaxError):
            wrong()
    with pytest.raises(ValueError, match="malformed"):
        syntax.literal("f(1)")


def test_nothing_else_parses():
    """Programs that run inside a sandbox have one thread and cannot import Etude."""
    for path in PACKAGE.rglob("*.py"):
        if "inside" not in path.parts and path.name != "syntax.py":
            assert not re.search(r"\bast\.parse\(", path.read_text()), path

"""The test of a generated mini-repository: what the agent sees and what judges it.

Owns `CheckCase`, `visible_check` (the text of check.py in the workspace), `printed_failure` (what it says) and
`verifier_for` (the hidden cases). The visible check tells right from wrong and keeps what would be right to itself: it
holds checksums, so that what no comment says must be found by trying. Values are plain Python literals. Never imports
the code under test in this process.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etude.records import Verifier
from etude.tasks.verifiers import calls_verifier

CHECK = "check.py"


@dataclass(frozen=True)
class CheckCase:
    """`module.function(*arguments)` must equal `expected`."""

    module: str
    function: str
    arguments: list[Any]
    expected: Any


_VISIBLE = '''\
"""Run me: python3 check.py"""
import zlib

{imports}

CASES = [
{cases}
]

failed = 0
for function, arguments, {kept} in CASES:
    try:
        got = function(*arguments)
    except Exception as error:
        got = error
{judged}
        failed += 1
        if failed <= 2:
            shown = ", ".join(map(repr, arguments))
            print(f"FAIL {{function.__name__}}({{shown}}) = {{got!r}}{said}")
print("failed" if failed else "passed")
raise SystemExit(failed > 0)
'''
_BY_CHECKSUM = "    if zlib.crc32(repr(got).encode()) != checksum:"
_BY_SIZE = '''\
    right = sealed ^ zlib.crc32(repr((function.__name__, arguments)).encode())
    if got != right:
        size = "" if isinstance(got, Exception) else ", too low" if got < right else ", too high"'''


def visible_check(cases: Sequence[CheckCase]) -> str:
    """A script that calls every case, prints the first two that fail, and exits 1 if any did."""
    return _script([(case, zlib.crc32(repr(case.expected).encode())) for case in cases], "checksum", _BY_CHECKSUM, "")


def compared_check(cases: Sequence[CheckCase]) -> str:
    """The same, of calls that return numbers: it also says whether what failed is too low or too high."""
    sealed = [(case, case.expected ^ zlib.crc32(repr((case.function, case.arguments)).encode())) for case in cases]
    return _script(sealed, "sealed", _BY_SIZE, "{size}")


def _script(cases: Sequence[tuple[CheckCase, int]], kept: str, judged: str, said: str) -> str:
    imports = "\n".join(f"import {module}" for module in sorted({case.module for case, _ in cases}))
    rows = "\n".join(f"    ({case.module}.{case.function}, {case.arguments!r}, {value})," for case, value in cases)
    return _VISIBLE.format(imports=imports, cases=rows, kept=kept, judged=judged, said=said)


def printed_failure(function: str, arguments: Sequence[Any], got: Any, size: str = "") -> str:
    """What the script prints when one case fails, for those who speak of a check without running one."""
    return f"FAIL {function}({', '.join(map(repr, arguments))}) = {got!r}{size}\nfailed\n"


def verifier_for(cases: Sequence[CheckCase]) -> Verifier:
    """The hidden cases, behind a trusted parent; the visible check is gone when they are asked."""
    calls = [(case.module, case.function, case.arguments, case.expected) for case in cases]
    return calls_verifier(calls, away=[CHECK])

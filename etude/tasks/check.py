"""The test of a generated mini-repository: what the agent sees and what judges it.

Owns `CheckCase`, `visible_check` (the text of check.py in the workspace) and `verifier_for` (the hidden cases). Values are
plain Python literals. Never imports the code under test in this process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from etude.records import Verifier


@dataclass(frozen=True)
class CheckCase:
    """`module.function(*arguments)` must equal `expected`."""

    module: str
    function: str
    arguments: list[Any]
    expected: Any


_VISIBLE = '''\
"""Run me: python3 check.py"""
{imports}

CASES = [
{cases}
]

failed = 0
for function, arguments, expected in CASES:
    try:
        got = function(*arguments)
    except Exception as error:
        got = error
    if got != expected:
        failed += 1
        if failed <= 2:
            print(f"FAIL {{function.__name__}}({{', '.join(map(repr, arguments))}}) = {{got!r}}, expected {{expected!r}}")
print("failed" if failed else "passed")
raise SystemExit(failed > 0)
'''


def visible_check(cases: Sequence[CheckCase]) -> str:
    """A script that calls every case, prints the first two that fail, and exits 1 if any did."""
    imports = "\n".join(f"import {module}" for module in sorted({case.module for case in cases}))
    rows = "\n".join(f"    ({case.module}.{case.function}, {case.arguments!r}, {case.expected!r})," for case in cases)
    return _VISIBLE.format(imports=imports, cases=rows)


_HIDDEN = """\
import importlib, json, sys
sys.path.insert(0, "/workspace")
cases = json.load(open("/tests/cases.json"))
ok = True
for module, function, arguments, expected in cases:
    try:
        ok = ok and getattr(importlib.import_module(module), function)(*arguments) == expected
    except Exception:
        ok = False
open("/logs/verifier/reward.txt", "w").write(str(float(ok)))
"""


def verifier_for(cases: Sequence[CheckCase]) -> Verifier:
    rows = [[case.module, case.function, case.arguments, case.expected] for case in cases]
    return Verifier(
        files={
            "/tests/test.sh": b"mkdir -p /logs/verifier && python3 -I -S -B /tests/hidden.py\n",
            "/tests/hidden.py": _HIDDEN.encode(),
            "/tests/cases.json": json.dumps(rows).encode(),
        }
    )

"""The real-code set: one bug each in real functions of more-itertools, toolz and boltons, with their own tests.

Owns the records in data/real.json and `suite_tasks`, which makes tasks of them; `tasks.real` has all that are
evaluated. A record holds the slice of the package
that the function and its tests need, source lines unchanged, the line that was changed, and the tests; so nothing has
to be downloaded, and a sandbox needs no package installed. `rewards.realset` makes and validates the records; the
licences of the packages (MIT and BSD) are in data/licenses. Runs nothing.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from etude import syntax
from etude.config import Config
from etude.records import Limits, Task
from etude.tasks.holdout import is_held_out
from etude.tasks.mutate import Mutation
from etude.tasks.verifiers import HeldOutCalls, suite_verifier, with_unseen

LIMITS = Limits(max_turns=14, max_context_tokens=1024, max_sampled_tokens=512)
TIMEOUT_S = 5.0
CHECK = "check.py"
DATA = "real.json"

_CHECK = '''\
"""Run me: python3 check.py"""
import traceback

import {module} as suite

TESTS = [
{tests}
]

failed = 0
for test in TESTS:
    name, _, method = test.partition(".")
    case = getattr(suite, name)
    try:
        case(method).debug() if method else case()
    except Exception as error:
        failed += 1
        if failed <= 2:
            frames = traceback.extract_tb(error.__traceback__)
            line = [frame.line for frame in frames if frame.filename == suite.__file__][-1]
            said = str(error).split("\\n")[0][:120]
            print(f"FAIL {{test}}: {{line}} # {{type(error).__name__}} {{said}}")
print("failed" if failed else "passed")
raise SystemExit(failed > 0)
'''


class RealRecord(Config):
    """One bug in a real function. Paths are relative to the workspace; texts are the authors'."""

    package: str
    version: str
    licence: str
    function: str
    path: str
    bug: str
    """The template, by the ladder's name for it."""
    line: int
    right: str
    wrong: str
    test_module: str
    tests: tuple[str, ...]
    fail_to_pass: tuple[str, ...] = ()
    files: dict[str, str]
    """The package's slice, without the bug, and `{test_module}.py`."""
    unseen: tuple[tuple[str, str], ...] = ()
    """Arguments that no test passes to the function, and what it gives for them, as Python writes them."""

    @property
    def id(self) -> str:
        return f"real-{self.package}-{self.function}-{self.bug}-{self.line}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def task_of(record: RealRecord) -> Task:
    """The task: the slice with the bug in it, the tests to see, and the same tests from outside to judge by."""
    mutation = Mutation(record.bug, record.line, record.right, record.wrong)
    broken = {**record.files, record.path: mutation.apply(record.files[record.path])}
    tests = "\n".join(f"    {test!r}," for test in record.tests)
    check = _CHECK.format(module=record.test_module, tests=tests)
    suite = f"{record.test_module}.py"
    calls = [(record.module, record.function, *map(syntax.literal, texts)) for texts in record.unseen]
    verifier = suite_verifier(record.files[suite], record.test_module, record.tests, TIMEOUT_S)
    return Task(
        id=record.id,
        instruction=f"python3 {CHECK} fails: there is a bug in {record.function} in {record.path}. Fix it.",
        files={**{path: text.encode() for path, text in broken.items()}, CHECK: check.encode()},
        verifier=with_unseen(verifier, HeldOutCalls(calls, [CHECK, suite])),
        solution={record.path: record.files[record.path].encode()},
        limits=LIMITS,
        split="real",
        provenance=_provenance(record, [CHECK, suite]),
    )


def _provenance(record: RealRecord, protected: list[str]) -> dict[str, Any]:
    return {
        "family": "real",
        **record.model_dump(include={"package", "version", "licence", "function", "path", "bug"}),
        "bug_held_out": is_held_out("bug", record.bug),
        "old": record.wrong.strip(),
        "new": record.right.strip(),
        "fail_to_pass": list(record.fail_to_pass),
        "unseen": len(record.unseen),
        "protected": protected,
    }


@cache
def real_records() -> tuple[RealRecord, ...]:
    """The checked-in records, in their fixed order."""
    text = (files("etude.tasks") / "data" / DATA).read_bytes()
    return TypeAdapter(tuple[RealRecord, ...]).validate_json(text)


def suite_tasks() -> list[Task]:
    """Those that tests of their own judge."""
    return [task_of(record) for record in real_records()]

"""Bugs in functions of the standard library and of pinned packages, judged by calls that the workspace does not name.

Owns `CallRecord`, the packed records in data/realcalls.jsonl.xz with the hash of what is in them, and `called_tasks`,
which makes tasks of them. There are two sets, and no module is in both: on `eval` choices are made, `exam` is for the
end. A record holds the source that a task needs, so that a task is the same on every machine, whatever Python or
packages it has; data/realcalls.md says whose source it is and under which licence. `rewards.callset` makes the file.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import TypeAdapter

from etude import syntax
from etude.config import Config
from etude.errors import ConfigError
from etude.records import Limits, Task
from etude.tasks.check import CHECK
from etude.tasks.holdout import is_held_out
from etude.tasks.mutate import Mutation
from etude.tasks.verifiers import calls_verifier

Split = Literal["eval", "exam"]
RecordSplit = Literal["eval", "exam", "train"]
"""`train` is of none of the sets: `rewards.mining.calls` makes such records of any code."""
Case = tuple[str, str]
"""Positional arguments (a list) and the value for them, as Python writes them."""

DATA = "realcalls.jsonl.xz"
SHA256 = "5de7ed46383d3ad0eeb49816c42a092aa42de1b08a6f268c210d3dcb9645b52c"
"""Of the unpacked records: the text is the same everywhere, what an xz of it looks like is the library's business."""
LIMITS = Limits(max_turns=14, max_context_tokens=1024, max_sampled_tokens=512)
TIMEOUT_S = 5.0

_CHECK = '''\
"""Run me: python3 check.py"""
from {module} import {function}

CASES = [
{cases}
]

failed = 0
for arguments, expected in CASES:
    shown = ", ".join(map(repr, arguments))
    try:
        got = {function}(*arguments)
        got = list(got) if hasattr(got, "__next__") else got
    except Exception as error:
        got = error
    if got != expected:
        failed += 1
        if failed <= 2:
            print(f"FAIL {function}({{shown}}) = {{got!r}}, not {{expected!r}}")
print("failed" if failed else "passed")
raise SystemExit(failed > 0)
'''


class CallRecord(Config):
    """One bug in a real function. Paths are relative to the workspace; texts are the authors'."""

    split: RecordSplit
    package: str
    """The distribution, or "stdlib"."""
    version: str
    licence: str
    home: str
    """The package or top-level module that no training data may hold."""
    function: str
    path: str
    bug: str
    """The template, by the ladder's name for it."""
    line: int
    right: str
    wrong: str
    files: dict[str, str]
    """The slice that the function needs, without the bug."""
    shown: tuple[Case, ...]
    hidden: tuple[Case, ...]

    @property
    def id(self) -> str:
        return f"real-{self.module}-{self.function}-{self.bug}-{self.line}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def task_of(record: CallRecord) -> Task:
    """The task: the slice with the bug in it, a check that names a few calls, and others to judge by. In training a
    mend must pass the check, too; what the two sets ask is sealed as it was, without it (tests/tasks/test_exam.py)."""
    mutation = Mutation(record.bug, record.line, record.right, record.wrong)
    broken = {**record.files, record.path: mutation.apply(record.files[record.path])}
    rows = "\n".join(f"    ({arguments}, {value})," for arguments, value in record.shown)
    check = _CHECK.format(module=record.module, function=record.function, cases=rows)
    cases = (*record.shown, *record.hidden) if record.split == "train" else record.hidden
    calls = [(record.module, record.function, *map(syntax.literal, case)) for case in cases]
    return Task(
        id=record.id,
        instruction=f"python3 {CHECK} fails: there is a bug in {record.function} in {record.path}. Fix it.",
        files={**{path: text.encode() for path, text in broken.items()}, CHECK: check.encode()},
        verifier=calls_verifier(calls, TIMEOUT_S, [CHECK]),
        solution={record.path: record.files[record.path].encode()},
        limits=LIMITS,
        split="real",
        provenance={
            "family": "real",
            **record.model_dump(include={"package", "version", "licence", "function", "path", "bug"}),
            "set": record.split,
            "bug_held_out": is_held_out("bug", record.bug),
            "old": record.wrong.strip(),
            "new": record.right.strip(),
            "protected": [CHECK],
        },
    )


@cache
def call_records() -> tuple[CallRecord, ...]:
    """All records of both sets, in their fixed order. Raises ConfigError when the file is not the sealed one."""
    text = lzma.decompress((files("etude.tasks") / "data" / DATA).read_bytes())
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise ConfigError(
            f"etude/tasks/data/{DATA} is not the file whose hash etude/tasks/realcalls.py has: "
            "restore it from git, or set SHA256 to what `python -m etude.rewards.callset` says"
        )
    return TypeAdapter(tuple[CallRecord, ...]).validate_json(b"[" + b",".join(text.splitlines()) + b"]")


def packed(records: Sequence[CallRecord]) -> bytes:
    """The text that the hash is of: a line of JSON a record."""
    return b"".join(record.model_dump_json().encode() + b"\n" for record in records)


def called_tasks(split: Split) -> list[Task]:
    """One of the two sets. Neither is ever trained on."""
    return [task_of(record) for record in call_records() if record.split == split]

"""What of a commit is source, what is test, and whether it is one that could be a task.

Owns the classes of paths, `MineLimits` and `split`: a commit becomes a `Candidate`, or is dropped for a reason with a
name. Looks at paths and contents only; whether the tests tell before from after is found out by running them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import Field

from etude.config import Config
from etude.tasks.mined.history import Change, Commit, History, Tree

Reason: TypeAlias = Literal[
    "no source", "no tests", "too many files", "too many lines", "binary change", "source removed",
    "workspace too large", "message says too little", "message gives the answer away", "answer is in the workspace",
    "no environment", "linter does not run", "nothing to mend", "tests do not run", "flaky", "no fail-to-pass",
    "not sound",
]  # fmt: skip
"""Why a commit, or what a generator proposes, is no task; in the order in which it is looked at."""

_TEST = re.compile(r"(^|/)(tests?|testing)/|(^|/)(test_[^/]*|[^/]*_tests?|conftest)\.py$")
_TEST_MODULE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test)\.py$")
_SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Where pytest takes its settings from, at the top of a repository."""


class MineLimits(Config):
    """What a commit may be to become a task."""

    source_files: int = Field(6, ge=1)
    """Most source files that a commit changes."""
    source_lines: int = Field(200, ge=1)
    """Added plus removed, in the source alone."""
    test_lines: int = Field(600, ge=1)
    """Added plus removed, in its tests."""
    files: int = Field(20, ge=1)
    """Most files that it changes, of any kind."""
    workspace_mb: int = Field(32, ge=1, le=48)
    """The largest repository, without its history."""


@dataclass(frozen=True)
class Rejected:
    """A commit that is no task, and why."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class Candidate:
    """A commit in two patches. All paths are relative to the repository's top.

    `answer` is the source patch: the files it changes, as they are after it. `restored` are the files the tests run
    with, as they are after it: the tests, their helpers, and pytest's settings; they come from outside every time.
    """

    commit: Commit
    before: Tree
    after: Tree
    answer: dict[str, bytes]
    restored: dict[str, bytes]
    test_modules: tuple[str, ...]
    """Those the commit changes; they are what is run."""
    lines: int
    """Of the source patch, added plus removed."""


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests: a test module, or anything below a directory of tests."""
    return _TEST.search(path) is not None


def is_test_module(path: str) -> bool:
    """Whether pytest takes it for tests, by its name."""
    return _TEST_MODULE.search(path) is not None


def is_pytest_setting(path: str) -> bool:
    return path in _SETTINGS


def is_source(path: str) -> bool:
    """Python that is not a test, a script of the project's upkeep, or documentation."""
    return (
        path.endswith(".py") and not is_test(path) and not re.match(r"(docs?|examples?|benchmarks?)/|setup\.py$", path)
    )


def reject_by_files(changes: Sequence[Change], limits: MineLimits) -> Rejected | None:
    """What can be said of a commit by its list of files alone; cheap, so it goes first."""
    source = [change for change in changes if is_source(change.path)]
    tests = [change for change in changes if _TEST_MODULE.search(change.path) and change.status != "D"]
    if not source:
        return Rejected("no source")
    if not tests:
        return Rejected("no tests")
    if len(changes) > limits.files or len(source) > limits.source_files:
        return Rejected("too many files", f"{len(source)} of source, {len(changes)} in all")
    if any(change.lines is None for change in changes if not is_test(change.path)):
        return Rejected("binary change")
    lines, test_lines = (sum(change.lines or 0 for change in some) for some in (source, tests))
    if lines > limits.source_lines or test_lines > limits.test_lines:
        return Rejected("too many lines", f"{lines} of source, {test_lines} of tests")
    if removed := [change.path for change in source if change.status not in ("A", "M")]:
        return Rejected("source removed", removed[0])
    return None


def split_commit(history: History, commit: Commit, limits: MineLimits) -> Candidate | Rejected:
    """The two patches of a commit. Raises what reading the repository raises."""
    changes = history.changes(commit)
    if (dropped := reject_by_files(changes, limits)) is not None:
        return dropped
    most = limits.workspace_mb << 20
    before, after = history.tree(commit.parent, most), history.tree(commit.id, most)
    if before is None or after is None:
        return Rejected("workspace too large", f"more than {limits.workspace_mb} MB")
    changed = {change.path for change in changes}
    answer = {path: data for path, data in after.files.items() if path in changed and is_source(path)}
    restored = {path: data for path, data in after.files.items() if is_test(path) or path in _SETTINGS}
    modules = tuple(sorted(path for path in changed & restored.keys() if _TEST_MODULE.search(path)))
    if not answer or not modules:
        return Rejected("no source" if not answer else "no tests", "only links changed")
    lines = sum(change.lines or 0 for change in changes if change.path in answer)
    return Candidate(commit, before, after, answer, restored, modules, lines)

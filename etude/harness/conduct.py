"""Counts how a session worked, from its log, in the same way for rollouts, benchmarks and reports.

Owns `Conduct`, `conduct_of` and `habits`, what several of them come to. Judges nothing: what is counted is what was
called and answered. Which file is a test, and which command runs tests or a linter, is told by names that are usual.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.harness.claims import unchecked_claim
from etude.harness.tools.base import relative
from etude.records import Event

READS = frozenset(("read_file", "list_dir", "grep", "glob", "codebase_search"))
EDITS = frozenset(("edit_file", "write_file"))
TERMINAL, LINTS = "run_terminal_cmd", "read_lints"
_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|__tests__|specs?)/|(?:^|/)(?:test_|check_)[^/]*$|(?:^|/)(?:tests?|check|conftest)\.[a-z]+$"
    r"|[_.-](?:test|tests|spec)\.[a-z]+$|Tests?\.(?:java|kt|cs|swift)$"
)
_STARTS = r"(?:^|[;&|(\n]|\b(?:run|exec|npx|bunx|uvx|time|env)(?=\s)|\s-m(?=\s))\s*(?:\w+=\S*\s+)*(?:[\w.-]*/)*"
"""Where a command's name stands in a line: at its start, behind another command, or behind what starts it."""
_RUNS_TESTS = re.compile(
    rf"{_STARTS}(?:(?:py\.?test|tox|nox|unittest|jest|vitest|mocha|rspec|phpunit|ctest|bats)(?=$|[\s;&|)])"
    r"|(?:cargo|go|npm|pnpm|yarn|bun|deno|dotnet|swift|mix|sbt|mvn|gradlew?|make|just|rake|zig)\s+(?:run\s+)?test)"
)
_RUNS_LINTER = re.compile(
    rf"{_STARTS}(?:(?:ruff|flake8|pylint|pyflakes|mypy|pyright|eslint|tsc|shellcheck|golangci-lint|rubocop)"
    r"(?=$|[\s;&|)])|go\s+vet\b|cargo\s+clippy\b|(?:npm|pnpm|yarn|bun|make|just)\s+(?:run\s+)?lint)"
)
_PROGRAMS = re.compile(r"\b(?:python[\d.]*|node|ruby|perl|php|sh|bash|deno|bun)\b")
_FINDING = re.compile(r"^(?P<file>[^:\n]+):\d+: (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Conduct:
    """All calls are well-formed ones."""

    calls: int = 0
    looked: int = 0
    """Reads and searches before the first edit; all of them where nothing was edited."""
    edited: bool = False
    in_terminal: int = 0
    """Calls of the terminal."""
    edits: int = 0
    """Edits, of `edit_file`, that were made."""
    edits_unread: int = 0
    """Those of a file that the session had neither read nor written, nor named in a command."""
    tests_written: int = 0
    """Test files that were written or edited."""
    tests_run: int = 0
    """Commands that run tests."""
    own_tests_run: bool = False
    """Whether tests were run after the last test file was written."""
    lint_checks: int = 0
    """Calls of read_lints, and commands that run a linter."""
    lints_told: int = 0
    """Different findings that read_lints told."""
    lints_fixed: int = 0
    """Those that it told no more when it last looked at their file."""
    unchecked_claims: int = 0
    """1 where the last message says that it was tested, and nothing was run since the last edit."""
    by_tool: Mapping[str, int] = field(default_factory=dict)
    """How many calls were of which tool."""


@dataclass(frozen=True)
class _Call:
    name: str
    given: Mapping[str, Any]
    text: str
    failed: bool

    @property
    def path(self) -> str:
        return relative(str(self.given.get("path", ".")))

    @property
    def command(self) -> str:
        return str(self.given.get("command", "")) if self.name == TERMINAL else ""


def conduct_of(events: Sequence[Event]) -> Conduct:
    """How the session of a log worked."""
    calls = list(_calls(events))
    names = [call.name for call in calls]
    first = next((place for place, name in enumerate(names) if name in EDITS), None)
    made = [call for call in calls if call.name == "edit_file" and not call.failed]
    written = [at for at, call in enumerate(calls) if call.name in EDITS and not call.failed and _is_test(call.path)]
    ran = [at for at, call in enumerate(calls) if _runs_tests(call.command)]
    told, fixed = _lints(calls)
    return Conduct(
        calls=len(names),
        looked=sum(name in READS for name in names[:first]),
        edited=first is not None,
        in_terminal=names.count(TERMINAL),
        edits=len(made),
        edits_unread=_unread(calls),
        tests_written=len({calls[at].path for at in written}),
        tests_run=len(ran),
        own_tests_run=bool(written and ran and ran[-1] > written[-1]),
        lint_checks=sum(call.name == LINTS or bool(_RUNS_LINTER.search(call.command)) for call in calls),
        lints_told=told,
        lints_fixed=fixed,
        unchecked_claims=int(unchecked_claim(events) is not None),
        by_tool=dict(Counter(names)),
    )


def habits(conducts: Sequence[Conduct]) -> dict[str, float | None]:
    """What sessions have in common: shares and means, None of what none of them had an occasion for."""

    def total(name: str) -> int:
        return sum(getattr(each, name) for each in conducts)

    def share(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    edits, sessions, testers = total("edits"), len(conducts), sum(each.tests_written > 0 for each in conducts)
    return {
        "edits_read_first": share(edits - total("edits_unread"), edits),
        "tests_written": share(total("tests_written"), sessions),
        "tests_run": share(total("tests_run"), sessions),
        "own_tests_run": share(total("own_tests_run"), testers),
        "lint_checks": share(total("lint_checks"), sessions),
        "lints_fixed": share(total("lints_fixed"), total("lints_told")),
        "unchecked_claims": share(total("unchecked_claims"), sessions),
    }


def _calls(events: Sequence[Event]) -> Iterator[_Call]:
    """In their order, each with what it was answered."""
    results = {_place(event): event.data for event in events if event.kind == "tool_result"}
    for event in events:
        if event.kind == "tool_call" and "raw" not in event.data:
            said = results.get(_place(event), {})
            given = event.data.get("arguments", {})
            yield _Call(event.data["name"], given, str(said.get("text", "")), bool(said.get("error")))


def _place(event: Event) -> tuple[Any, Any]:
    """Which call of which turn it is about; an agent of others' may not say."""
    return event.data.get("turn"), event.data.get("index")


def _unread(calls: Sequence[_Call]) -> int:
    known, commands, count = set[str](), "", 0
    for call in calls:
        if call.name == "edit_file" and not call.failed:
            count += call.path not in known and posixpath.basename(call.path) not in commands
        if not call.failed and call.name in ("read_file", *EDITS):
            known.add(call.path)
        commands += f"{call.command}\n"
    return count


def _lints(calls: Sequence[_Call]) -> tuple[int, int]:
    """Findings that were told, and those of them that were gone when their file was looked at last. The line that one
    stands in may be another by then."""
    told, left = set[tuple[str, str]](), set[tuple[str, str]]()
    for call in calls:
        if call.name == LINTS and not call.failed:
            found = {(match["file"], match["text"]) for match in _FINDING.finditer(call.text)}
            left = {each for each in left if not _lies_below(each[0], call.path)} | found
            told |= found
    return len(told), len(told - left)


def _lies_below(file: str, path: str) -> bool:
    return path == "." or file == path or file.startswith(f"{path}/")


def _is_test(path: str) -> bool:
    return _TEST_FILE.search(path) is not None


def _runs_tests(command: str) -> bool:
    """By a runner of tests, or by a program that is given a test file."""
    named = _PROGRAMS.search(command) is not None or command.lstrip().startswith("./")
    return bool(_RUNS_TESTS.search(command)) or (named and any(map(_is_test, re.split(r"[\s;&|()]+", command))))

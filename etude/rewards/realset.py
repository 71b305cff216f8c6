"""Makes the real-code set: finds functions with tests of their own, breaks them, and keeps the bugs that tests show.

    python -m etude.rewards.realset --sources DIR    # downloads the pinned source archives into DIR where they are not

Owns the pins, the choice of functions and bugs (by hash, so that nobody chose what is easy) and the writing of
etude/tasks/data/real.json. Every record is a task that passed `rewards.validate`: at least one test fails with the bug
and all pass without it, twice, in sandboxes without a network. Not needed at run time.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import hashlib
import json
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from etude import syntax
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.errors import EtudeError, MissingDependency
from etude.plain import say
from etude.rewards.unseen import unseen_calls
from etude.rewards.validate import validate
from etude.tasks import realcode
from etude.tasks.mutate import mutations_of
from etude.tasks.realcode import RealRecord, task_of
from etude.tasks.slices import NotSliceable, SourceModule, SourcePackage, Symbol, slice_of
from etude.tasks.verifiers import HeldOutCalls

SIZE = 40
MOST_PACKAGE_CHARS = 1500
MOST_TEST_CHARS = 2000
TRIES = 8
"""Bugs tried in one function before it is given up."""
CONCURRENT = 4
DOWNLOAD_DEADLINE_S = 300.0
_UNSTABLE = {
    "pytest",
    "random",
    "os",
    "sys",
    "time",
    "sleep",
    "gc",
    "Thread",
    "seed",
    "shuffle",
    "sample",
    "subprocess",
}

log = structlog.get_logger()


@dataclass(frozen=True)
class Pin:
    """A source archive, as its file name has it, and where its tests are."""

    package: str
    project: str
    version: str
    licence: str
    tests: str

    @property
    def directory(self) -> str:
        return f"{self.project}-{self.version}"


PINS = (
    Pin("more_itertools", "more_itertools", "11.2.1", "MIT", "tests"),
    Pin("toolz", "toolz", "1.2.0", "BSD-3-Clause", "toolz/tests"),
    Pin("boltons", "boltons", "26.2.0", "BSD-3-Clause", "tests"),
)


@dataclass(frozen=True)
class Subject:
    """A function, with the slice and the tests of its own that a task can hold."""

    pin: Pin
    path: str
    function: str
    test_module: str
    tests: tuple[str, ...]
    files: dict[str, str]


def fetch_sources(directory: Path) -> None:
    """Download and unpack the pinned source archives that `directory` lacks."""
    directory.mkdir(parents=True, exist_ok=True)
    for pin in PINS:
        if (directory / pin.directory).is_dir():
            continue
        wanted = f"{pin.project}=={pin.version}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", wanted]
        try:
            subprocess.run([*command, "-d", str(directory)], check=True, timeout=DOWNLOAD_DEADLINE_S)
        except (subprocess.SubprocessError, OSError) as error:
            raise MissingDependency(f"cannot download {wanted}: {error}; unpack its sdist in {directory}") from None
        with tarfile.open(directory / f"{pin.directory}.tar.gz") as archive:
            archive.extractall(directory, filter="data")


def subjects_of(pin: Pin, sources: Path) -> Iterator[Subject]:
    """The functions of a package whose slice and tests are small enough, in the order of their files."""
    root = sources / pin.directory
    package = SourcePackage(root, pin.package)
    for path in sorted((root / pin.tests).glob("test_*.py")):
        tests = package.add_tests(path, f"suite_{path.stem}")
        for function, cases in _tested_functions(package, tests).items():
            subject = _subject(pin, package, tests, function, cases)
            if subject is not None:
                yield subject


def _tested_functions(package: SourcePackage, tests: SourceModule) -> dict[Symbol, list[str]]:
    """For every top-level function of the package, the test functions and classes that name it."""
    found: dict[Symbol, list[str]] = {}
    for statement in tests.statements:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef) or not _test_ids(statement):
            continue
        try:
            named = package.direct_uses(tests, statement)
        except NotSliceable:
            continue
        for symbol in named:
            module = package.module(symbol[0])
            if module is not None and isinstance(module.binders.get(symbol[1]), ast.FunctionDef):
                found.setdefault(symbol, []).append(statement.name)
    return found


def _test_ids(statement: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """The tests in a statement that can run alone: no fixtures, and nothing that changes from run to run."""
    if {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} & _UNSTABLE:
        return []
    if isinstance(statement, ast.FunctionDef):
        runs = statement.name.startswith("test") and not statement.args.args and not statement.decorator_list
        return [statement.name] if runs else []
    if not any("TestCase" in ast.unparse(base) for base in statement.bases):
        return []
    methods = [item.name for item in statement.body if isinstance(item, ast.FunctionDef)]
    return [f"{statement.name}.{name}" for name in methods if name.startswith("test")]


def _subject(
    pin: Pin, package: SourcePackage, tests: SourceModule, function: Symbol, cases: list[str]
) -> Subject | None:
    """Take as many of the tests as fit; None when not even one does."""
    home = package.module(function[0])
    assert home is not None
    taken: list[str] = []
    files: dict[str, str] = {}
    for case in cases:
        try:
            wider = slice_of(package, [function, *((tests.name, name) for name in (*taken, case))])
        except NotSliceable:
            continue
        code = sum(len(text) for path, text in wider.items() if path != tests.path)
        if code <= MOST_PACKAGE_CHARS and len(wider[tests.path]) <= MOST_TEST_CHARS:
            taken, files = [*taken, case], wider
    name = f"test_{function[1]}"
    if not taken or any(word in text for text in files.values() for word in ("import random", "import time")):
        return None
    ids = tuple(test for case in taken for test in _test_ids(_class_or_function(tests, case)))
    renamed = {(f"{name}.py" if path == tests.path else path): text for path, text in files.items()}
    return Subject(pin, home.path, function[1], name, ids, renamed)


def _class_or_function(tests: SourceModule, name: str) -> ast.FunctionDef | ast.ClassDef:
    statement = tests.binders[name]
    assert isinstance(statement, ast.FunctionDef | ast.ClassDef)
    return statement


def _hash(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(["etude real v1", *map(str, parts)]).encode()).digest()


def candidates_of(subject: Subject) -> list[RealRecord]:
    """Bugs to try in a function, at most one of a template, in the order of a hash."""
    found = mutations_of(subject.files[subject.path], subject.function)
    found.sort(key=lambda mutation: _hash(subject.function, mutation.bug, mutation.wrong))
    one_each = {mutation.bug: mutation for mutation in reversed(found)}
    chosen = sorted(one_each.values(), key=lambda mutation: _hash(subject.function, mutation.bug))
    pin = subject.pin
    common = {"package": pin.package, "version": pin.version, "licence": pin.licence, "function": subject.function}
    return [
        RealRecord(
            **common, path=subject.path, bug=item.bug, line=item.line, right=item.right, wrong=item.wrong,
            test_module=subject.test_module, tests=subject.tests, files=subject.files,
        )
        for item in chosen[:TRIES]
    ]  # fmt: skip


async def sound_records(subject: Subject, backend: Backend) -> list[RealRecord]:
    """Every candidate that validates, with the tests it fails filled in."""
    kept = []
    for record in candidates_of(subject):
        validation = await validate(task_of(record), backend)
        if any("solution" in problem for problem in validation.problems):
            log.info("given up", function=subject.function, why=validation.problems)
            return []  # its slice is not whole, so no bug in it can be judged
        if validation.sound:
            wrong = syntax.literal(validation.before.detail.rpartition("wrong: ")[2].strip())
            unseen = await _unseen(record, backend)
            kept.append(record.model_copy(update={"fail_to_pass": tuple(wrong), "unseen": unseen}))
    return kept


async def _unseen(record: RealRecord, backend: Backend) -> tuple[tuple[str, str], ...]:
    task = task_of(record)
    right, away = {**task.files, **task.solution}, [realcode.CHECK, f"{record.test_module}.py"]
    request = {"functions": [(record.module, record.function)], "check": realcode.CHECK}
    asked = await unseen_calls(right, request, HeldOutCalls((), away), task.verifier, backend)
    return tuple((repr(arguments), repr(value)) for _, _, arguments, value in asked.calls)


def choose(records: list[RealRecord], size: int) -> list[RealRecord]:
    """One record a function; packages and templates as even as they come, ties by hash."""
    chosen: list[RealRecord] = []
    packages: Counter[str] = Counter()
    bugs: Counter[str] = Counter()
    left = list(records)
    while left and len(chosen) < size:
        best = min(left, key=lambda item: (packages[item.package] // 4, bugs[item.bug], _hash(item.id)))
        chosen.append(best)
        packages[best.package] += 1
        bugs[best.bug] += 1
        left = [item for item in left if (item.package, item.function) != (best.package, best.function)]
    return sorted(chosen, key=lambda item: _hash("order", item.id))


async def build(sources: Path, size: int) -> list[RealRecord]:
    backend = open_backend()
    gate = asyncio.Semaphore(CONCURRENT)

    async def gated(subject: Subject) -> list[RealRecord]:
        async with gate:
            return await sound_records(subject, backend)

    try:
        subjects = [subject for pin in PINS for subject in subjects_of(pin, sources)]
        found = await asyncio.gather(*(gated(subject) for subject in subjects))
    finally:
        await backend.close()
    records = [record for group in found for record in group]
    log.info("validated", subjects=len(subjects), functions=sum(map(bool, found)), bugs=len(records))
    return choose(records, size)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m etude.rewards.realset", description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="directory of unpacked source archives")
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--out", type=Path, default=Path(realcode.__file__).parent / "data" / realcode.DATA)
    options = parser.parse_args(arguments)
    try:
        fetch_sources(options.sources)
        records = asyncio.run(build(options.sources, options.size))
    except EtudeError as error:
        say(str(error), sys.stderr)
        return 1
    rows = ",\n".join(json.dumps(record.model_dump(), ensure_ascii=False) for record in records)
    options.out.write_text(f"[\n{rows}\n]\n")
    log.info("written", out=str(options.out), tasks=len(records))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

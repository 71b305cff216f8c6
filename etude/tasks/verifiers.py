"""The verifiers Etude writes itself: hidden calls with values, a module of tests, a repository's tests, a database.

Owns `calls_verifier`, `suite_verifier`, `pytest_verifier` and `database_verifier`, `with_unseen`, which has a verifier
ask calls beside its tests, `current_verifier`, what they ask today, `compiled_verifier`, the form they are run in, and
`unasked_tests`. All put a trusted parent (`inside.guard`) between the code under test and the reward. Runs nothing;
`rewards.verifier` does.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.resources import files
from importlib.util import MAGIC_NUMBER
from typing import Any

from etude import syntax
from etude.records import Verifier
from etude.tasks.outside import split_expectations

GUARD_COMMAND = "exec python3 -I -S -B /tests/guard.py"
"""`exec`, because the guard kills every process but itself: a shell waiting for it would die too."""
CANARY_TESTS = ("canary_assert", "Canary.equal", "Canary.true", "Canary.raises")
WHOLE = {"tools": ""}
"""Of programs that run tests: no function of the test framework was changed."""

Call = tuple[str, str, Sequence[Any], Any]
"""`module.function(*arguments)` must equal the value: (module, function, arguments, value)."""


@dataclass(frozen=True)
class HeldOutCalls:
    """Calls that nothing in the workspace names, with the values that the reference solution gave them."""

    calls: Sequence[Call]
    away: Sequence[str] = ()
    """Files of the workspace that are not there when they are asked: those that name other calls and their values."""
    environment: str = ""
    """Where packages are, inside."""


def calls_verifier(calls: Sequence[Call], timeout_s: float = 10.0, away: Sequence[str] = ()) -> Verifier:
    """All calls must return their value (reward 1), else the reward is 0; files of the workspace that are `away` cannot
    be read by then.

    Arguments and values are Python literals: numbers, strings, bytes, None, lists, tuples, sets, dicts.
    """
    return _sealed(_unseen_request(HeldOutCalls(calls, away)), timeout_s)


def calls_of(verifier: Verifier) -> list[Call]:
    """What a `calls_verifier` asks."""
    secret = syntax.literal(verifier.files["/tests/secret"].decode())
    return [(*secret["request"][key], value) for key, value in secret["expected"].items()]


def with_unseen(verifier: Verifier, unseen: HeldOutCalls) -> Verifier:
    """Both must be right: what the verifier asks, and after it these calls, in a process of their own. As it is where
    there are none."""
    if not unseen.calls:
        return verifier
    secret = syntax.literal(verifier.files["/tests/secret"].decode())
    return _sealed({**secret, "unseen": _unseen_request(unseen)}, verifier.timeout_s)


def _unseen_request(unseen: HeldOutCalls) -> dict[str, Any]:
    request: dict[Any, Any] = {"environment": unseen.environment} if unseen.environment else {}
    for index, (module, name, given, _) in enumerate(unseen.calls):
        request[index] = (module, name, list(given))
    expected = {index: value for index, (*_, value) in enumerate(unseen.calls)}
    away = {"away": list(unseen.away)} if unseen.away else {}
    return {"program": _program("calls"), "request": request, "expected": expected, **away}


def suite_verifier(source: str, name: str, tests: Sequence[str], timeout_s: float = 20.0) -> Verifier:
    """Every test of the module `source` must pass; `tests` are "function" or "Class.method" (unittest)."""
    request = {"source": source, "name": name, "tests": [*tests, *CANARY_TESTS]}
    expected = {**dict.fromkeys(tests, "ok"), **dict.fromkeys(CANARY_TESTS, "failed"), **WHOLE}
    return _guarded("suite", request, expected, timeout_s)


@dataclass(frozen=True)
class Lint:
    """A linter that looks before the tests run: what it may find at most, by rule, and comments that silence it."""

    command: tuple[str, ...]
    """Prints its problems as a list in JSON; `paths` come behind it."""
    rule: str
    """Under which key a problem names its rule."""
    paths: tuple[str, ...]
    suppressed: str
    """What such a comment looks like, as a regular expression. They count as the rule "suppressed"."""
    most: Mapping[str, int] = field(default_factory=dict)
    """A rule that is not here may not be broken at all."""


@dataclass(frozen=True)
class PytestRun:
    """What `inside.pytests` needs: where packages are, inside; the files tests run with; the modules to run."""

    environment: str
    files: Mapping[str, bytes]
    modules: tuple[str, ...]
    lints: tuple[Lint, ...] = ()

    def request(self, tests: Sequence[str] = ()) -> dict[str, Any]:
        lints = [
            {
                "command": list(lint.command), "rule": lint.rule, "paths": list(lint.paths),
                "suppressed": lint.suppressed, "most": dict(lint.most),
            }
            for lint in self.lints
        ]  # fmt: skip
        return {
            "environment": self.environment, "files": dict(self.files), "modules": list(self.modules),
            "tests": list(tests), **({"lints": lints} if lints else {}),
        }  # fmt: skip


def pytest_verifier(run: PytestRun, tests: Sequence[str], timeout_s: float) -> Verifier:
    """Every test, by pytest's id, must pass in the run: failed, skipped and missing are all no. So must every lint."""
    expected: dict[Any, str] = {**dict.fromkeys(range(len(tests)), "passed"), len(tests): "failed"}
    expected |= {f"lint{number}": "clean" for number in range(len(run.lints))} | WHOLE
    return _guarded("pytests", run.request(tests), expected if tests else {}, timeout_s)


def pytest_discovery(run: PytestRun) -> tuple[dict[str, bytes], str]:
    """Files (by absolute path) and the command that write the outcome of every test to /logs/outcomes, as JSON; of a
    run with lints, a list of what each of them counts by rule.
    """
    request = run.request()
    _check_literal(request)
    files = {"/tests/pytests.py": _inside("pytests"), "/tests/request": repr(request).encode()}
    return files, "exec python3 -I -S -B /tests/pytests.py"


def database_verifier(
    migrations: Mapping[str, bytes], directory: str, data: str, queries: Mapping[str, str],
    expected: Mapping[str, list[dict[str, Any]]], timeout_s: float,
) -> Verifier:  # fmt: skip
    """After the workspace's migrations, laid over `migrations` and the SQL `data`, every query must give its rows.

    `directory` is where migrations are. Needs PostgreSQL where it runs.
    """
    request = {"files": dict(migrations), "directory": directory, "data": data, "queries": dict(queries)}
    return _guarded("databases", request, expected, timeout_s)


def current_verifier(verifier: Verifier) -> Verifier:
    """As it is run: with today's guard and program, whenever the task was made, and with the values that its tests want
    taken out of them (see `tasks.outside`). One that Etude did not write is handed back as it is.
    """
    secret = verifier.files.get("/tests/secret")
    if secret is None or "/tests/guard.py" not in verifier.files or (told := _armed(secret)) is None:
        return verifier
    text = repr(told).encode()
    return replace(verifier, files={**verifier.files, "/tests/guard.py": _inside("guard"), "/tests/secret": text})


def compiled_verifier(verifier: Verifier) -> Verifier:
    """The current verifier in the form that is run: its guard and programs as code, and the secret marshalled, which
    Python reads in a hundredth of the time of their text. One with a command of its own keeps the text."""
    current = current_verifier(verifier)
    if current is verifier or verifier.command != GUARD_COMMAND:
        return current
    return replace(current, files={**current.files, **_compiled(verifier.files["/tests/secret"])})


@lru_cache(256)
def _compiled(secret: bytes) -> dict[str, bytes]:
    armed = _armed(secret)
    assert armed is not None, "only a secret of our making is compiled"
    told = {**armed, "program": _code_of(armed["program"], "child")}
    if "unseen" in told:
        told["unseen"] = {**told["unseen"], "program": _code_of(told["unseen"]["program"], "child")}
    guard = (*_code_of(_inside("guard").decode(), "guard"), 1 + ("unseen" in told))
    return {
        "/tests/guard.py": _inside("start"),
        "/tests/guard.code": marshal.dumps(guard),
        "/tests/secret": b"\0" + marshal.dumps(told),
    }


@lru_cache(16)
def _code_of(source: str, name: str) -> tuple[bytes, bytes, str]:
    """See `inside.guard`."""
    return MAGIC_NUMBER, marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=0)), source


def unasked_tests(verifier: Verifier) -> int:
    """How many of its tests decide by their own word, in the process of the code under test: on the way to their end no
    value is compared with one that the judge alone has, and no unseen calls are asked beside them."""
    secret = current_verifier(verifier).files.get("/tests/secret", b"{}")
    try:
        told = syntax.literal(secret.decode())
    except (ValueError, SyntaxError):
        return 0  # not of our making
    if not isinstance(told, dict) or "must" not in told or "unseen" in told:
        return 0
    valued = {place for place, (how, *_) in told["asked"].items() if how != "end"}
    return sum(valued.isdisjoint(places) for places in told["must"].values())


def _guarded(program: str, request: Any, expected: Mapping[Any, Any], timeout_s: float) -> Verifier:
    return _sealed({"program": _program(program), "request": request, "expected": dict(expected)}, timeout_s)


def _sealed(secret: dict[str, Any], timeout_s: float) -> Verifier:
    if not secret["expected"]:
        raise ValueError("a verifier without questions would pass everything")
    _check_literal(secret)
    return Verifier(
        files={"/tests/guard.py": _inside("guard"), "/tests/secret": repr(secret).encode()},
        command=GUARD_COMMAND,
        timeout_s=timeout_s,
    )


@lru_cache(256)
def _armed(secret: bytes) -> dict[str, Any] | None:
    """What a verifier's secret is today; nobody may change it."""
    try:
        told = syntax.literal(secret.decode())
        request, expected = told["request"], told["expected"]
        suite, pytest = "source" in request, "modules" in request
        if "unseen" in told:
            told["unseen"]["program"] = _program("calls")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return None  # not of our making
    if not (suite or pytest):
        program = "databases" if "queries" in request else "calls"
        return {**told, "program": _program(program)}
    told |= {"program": _program("suite" if suite else "pytests"), "expected": {**expected, **WHOLE}}
    files = {"": request["source"].encode()} if suite else request["files"]
    texts = {path: files[path] for path in ([""] if suite else request["modules"]) if path in files}
    taken, first = {}, 0
    for path, text in texts.items():
        taken[path] = split_expectations(text, first)
        first = taken[path].next
    asked = {place: how for each in taken.values() for place, how in each.asked.items()}
    if suite:
        request = {**request, "source": taken[""].text.decode()}
        must = {test: taken[""].passed_by(test.split(".")) for test in request["tests"] if test not in CANARY_TESTS}
    else:
        request = {**request, "files": {**files, **{path: each.text for path, each in taken.items()}}}
        numbers = {test: number for number, test in enumerate(request["tests"])}  # one may be named twice
        ids = {number: test.partition("[")[0].split("::") for test, number in numbers.items()}
        must = {number: taken[path].passed_by(names) for number, (path, *names) in ids.items() if path in taken}
    return {**told, "request": request, "asked": asked, "must": must}


def _check_literal(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_literal(key)
            _check_literal(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            _check_literal(item)
    elif value is not None and type(value) not in (bool, int, float, str, bytes):
        raise ValueError(f"{value!r} is not a Python literal, so a verifier cannot compare it")


@cache
def _program(name: str) -> str:
    """The text of a child; of one that runs tests, with what observes them before it."""
    return (_inside("observe") + _inside(name) if name in ("suite", "pytests") else _inside(name)).decode()


@cache
def _inside(name: str) -> bytes:
    return (files("etude.tasks") / "inside" / f"{name}.py").read_bytes()

"""Child of `guard`: runs tests under pytest and reports how each ended; or, by itself, finds out which there are.

The request is {"environment": directory of packages, "files": {path below /workspace: content}, "modules": paths of
test modules, "tests": [pytest's ids]}; the answer to the number of a test is "passed", "failed", "skipped" or
"missing". The files, tests and pytest's settings, come from outside and go in before anything is imported; settings and
conftest files that are not among them go, for they could decide what passes. Canaries, tests that must fail, run
last: their answer is the last number's. pytest and its plug-ins come from the environment, whatever the workspace calls
itself. What tests see goes to the parent (see `observe`, which goes before this text); at last "tools" is answered with
the first function of the test framework that was changed, or with nothing.

With "lints" in the request linters look first, before any code of the workspace runs; the answer to "lint0" and so on
is "clean", or what there is too much of.

Alone (`python3 -I -S -B /tests/pytests.py`) it reads its request, a Python literal, in /tests/request and writes the
outcome of every test, or where linters are asked what each of them counts, to /logs/outcomes as JSON.
"""

import os
import sys

WORKSPACE = "/workspace"
SETTINGS = (
    "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml", "ty.toml",
    "ruff.toml", ".ruff.toml",
)  # fmt: skip
CANARY = "test_canary_of_the_verifier.py"
CANARY_SOURCE = """
import pytest

def test_assert():
    assert [1] == [2]

def test_approx():
    assert 1.0 == pytest.approx(2.0)

def test_raises():
    with pytest.raises(ValueError):
        pass
"""
CANARIES = ("test_assert", "test_approx", "test_raises")


def run(request, observe):
    if request.get("lints"):
        restore(request["files"])
    for number, lint in enumerate(request.get("lints", [])):
        yield f"lint{number}", repr(too_much(lint, counts(lint)))
    tests = request["tests"]
    seen = Seen({test: number for number, test in enumerate(tests)}, observe)
    found = outcomes(request, seen)
    for number, test in enumerate(tests):
        yield number, repr(found.get(test, "missing"))
    yield len(tests), repr(found[f"{CANARY}::test_canary"])
    yield "tools", repr(seen.changed)


def outcomes(request, seen):
    """{pytest's id: how it ended} of every test in the modules, and of all canaries together as one."""
    restore({**request.pop("files"), CANARY: CANARY_SOURCE.encode()})
    os.chdir(WORKSPACE)
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.path.append(request["environment"])
    import pytest

    seen.known = set(sys.modules)
    os.environ["PYTHONPATH"] = ":".join([*places(), *sys.path])  # of what tests start themselves
    modules = [path for path in request["modules"] if os.path.exists(f"{WORKSPACE}/{path}")]
    options = ["-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors", "--rootdir", WORKSPACE]
    pytest.main([*options, *modules, CANARY], plugins=[seen])
    canaries = {seen.found.pop(f"{CANARY}::{name}", "missing") for name in CANARIES}
    return {**seen.found, f"{CANARY}::test_canary": "failed" if canaries == {"failed"} else "disarmed"}


def counts(lint):
    """{rule: how often} in the workspace, as the linter itself says; "suppressed" counts comments that silence it.

    A lint is {"command": what prints a JSON list of problems, "rule": the key of a problem that names its rule,
    "paths": files and directories, "suppressed": a pattern, "most": {rule: how often it may be}}.
    """
    import json
    import re
    import subprocess

    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "NO_COLOR": "1"}
    paths = [path for path in lint["paths"] if os.path.exists(f"{WORKSPACE}/{path}")]
    done = subprocess.run(
        [*lint["command"], *paths], cwd=WORKSPACE, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"the linter ended with {done.returncode}: {done.stderr[-500:]!r}")
    found = {"suppressed": 0}
    for problem in json.loads(done.stdout or b"[]"):
        rule = problem[lint["rule"]] or "invalid-syntax"
        found[rule] = found.get(rule, 0) + 1
    for path in paths:
        for file in [path] if path.endswith(".py") else python_files(path):
            with open(f"{WORKSPACE}/{file}", encoding="utf-8", errors="replace") as source:
                found["suppressed"] += len(re.findall(lint["suppressed"], source.read()))
    return found


def python_files(path):
    for parent, directories, names in os.walk(f"{WORKSPACE}/{path}"):
        directories.sort()
        yield from (os.path.relpath(f"{parent}/{name}", WORKSPACE) for name in sorted(names) if name.endswith(".py"))


def too_much(lint, found):
    worse = [f"{rule} {times}" for rule, times in sorted(found.items()) if times > lint["most"].get(rule, 0)]
    return ", ".join(worse) or "clean"


def places():
    """Where the workspace's modules are imported from."""
    return [f"{WORKSPACE}/src", WORKSPACE] if os.path.isdir(f"{WORKSPACE}/src") else [WORKSPACE]


class Seen:
    """A plugin that notes how each test ended; passed is what passed in every phase. `keys` are of tests that count."""

    def __init__(self, keys, observe=None):
        self.found, self.keys, self.observe, self.changed, self.known = {}, keys, observe, None, set()
        self.begin = self.learn = self.tools = None

    def pytest_load_initial_conftests(self):
        """All plug-ins are there, and the code under test is not: none of them is or imports the workspace's."""
        if self.observe:
            self.begin, self.learn, self.tools = next(self.observe).enter(places(), self.known)
        else:
            sys.path[:0] = places()

    def pytest_sessionfinish(self):
        """Before plug-ins take back what they have changed."""
        self.changed = self.tools and self.tools()

    def pytest_collection_finish(self, session):
        """The test modules have been executed, and none of the tests."""
        if self.learn:
            for module in {item.module for item in session.items if hasattr(item, "module")}:
                self.learn(module)

    def pytest_runtest_logstart(self, nodeid):
        if self.begin:
            self.begin(self.keys.get(nodeid))

    def pytest_runtest_logreport(self, report):
        before = self.found.get(report.nodeid)
        if report.outcome == "failed" or before == "failed":
            self.found[report.nodeid] = "failed"
        elif report.outcome == "skipped" or before == "skipped" or hasattr(report, "wasxfail"):
            self.found[report.nodeid] = "skipped"
        else:
            self.found[report.nodeid] = "passed"


def restore(files):
    for parent, directories, names in os.walk(WORKSPACE):
        directories[:] = [name for name in directories if name != ".git"]
        for name in names:
            path = os.path.join(parent, name)
            settings = parent == WORKSPACE and name in SETTINGS
            if (settings or name == "conftest.py") and os.path.relpath(path, WORKSPACE) not in files:
                os.unlink(path)
    for path, content in files.items():
        place = os.path.join(WORKSPACE, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if os.path.islink(place):
            os.unlink(place)
        with open(place, "wb") as file:
            file.write(content)


if __name__ == "__main__":
    with open("/tests/request", encoding="utf-8") as asked:
        wanted = eval(asked.read())
    ended = [counts(lint) for lint in wanted["lints"]] if wanted.get("lints") else outcomes(wanted, Seen({}))
    import json

    with open("/logs/outcomes", "w", encoding="utf-8") as written:
        json.dump(ended, written)

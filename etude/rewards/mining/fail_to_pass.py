"""Which tests fail before a change and pass after it (FAIL_TO_PASS): they are run, again and again, in fresh sandboxes.

Owns `Tests`, which runs a repository's tests on files, and `compared`, which says what two such runs tell. What the
code under test brings about, an endless loop say, is a reason; a failure of our machinery is raised.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etude.environments.base import WORKSPACE, Backend, Resources, SandboxSpec
from etude.tasks.mined.split import Rejected
from etude.tasks.verifiers import PytestRun, pytest_discovery

Outcomes = dict[str, str]
"""pytest's id of every test to "passed", "failed" or "skipped"."""
_OUTCOMES_MAX = 8 << 20


class Tests:
    """Runs of tests, each limited to `timeout_s` seconds and `memory_mb`."""

    def __init__(self, backend: Backend, timeout_s: float, memory_mb: int) -> None:
        self._backend, self._timeout_s, self._memory_mb = backend, timeout_s, memory_mb

    async def repeated(self, files: dict[str, bytes], run: PytestRun, times: int) -> Outcomes | Rejected:
        """What every one of the runs says."""
        first = await self.once(files, run)
        for _ in range(times - 1):
            if (again := await self.once(files, run)) == first:
                continue
            if isinstance(first, Rejected) or isinstance(again, Rejected):
                if type(first) is type(again):  # it is their words that differ
                    continue
                return Rejected("flaky", "one run ended, another did not")
            other = sorted(test for test in first.keys() | again.keys() if first.get(test) != again.get(test))
            return Rejected("flaky", ", ".join(other[:5]))
        return first

    async def once(self, files: dict[str, bytes], run: PytestRun) -> Outcomes | Rejected:
        """One run in a fresh sandbox. Code under test that kills it, or that runs too long, is no failure of ours."""
        found = await self._run(files, replace(run, lints=()))
        if isinstance(found, Rejected):
            return found
        canary = [found.pop(test) for test in list(found) if test.endswith("::test_canary")]
        return found if canary == ["failed"] else Rejected("tests do not run", "the canary passed, or never ran")

    async def linted(self, files: dict[str, bytes], run: PytestRun) -> list[dict[str, int]] | Rejected:
        """What each of the run's lints counts, by rule."""
        found = await self._run(files, run)
        return Rejected("linter does not run", found.detail) if isinstance(found, Rejected) else found

    async def mended(self, files: dict[str, bytes], command: Sequence[str], path: str) -> str | Rejected:
        """A file after a linter's `command` has mended it."""
        sandbox = await self._backend.create(SandboxSpec(files, resources=Resources(memory_mb=self._memory_mb)))
        try:
            done = await sandbox.exec(f"{shlex.join(command)} {shlex.quote(path)}", timeout_s=self._timeout_s)
            if done.exit_code not in (0, 1):
                return Rejected("linter does not run", done.output.decode("utf-8", "replace")[-300:])
            return (await sandbox.read_file(f"{WORKSPACE}/{path}", _OUTCOMES_MAX)).decode()
        except (OSError, ValueError) as error:
            return Rejected("linter does not run", str(error))
        finally:
            await sandbox.destroy()

    async def _run(self, files: dict[str, bytes], run: PytestRun) -> Any | Rejected:
        """What `inside.pytests` writes."""
        program, command = pytest_discovery(run)
        said = ""
        sandbox = await self._backend.create(SandboxSpec(files, resources=Resources(memory_mb=self._memory_mb)))
        try:
            for path, content in program.items():
                await sandbox.write_file(path, content)
            done = await sandbox.exec(command, timeout_s=self._timeout_s, max_output_bytes=2000)
            said = done.output.decode("utf-8", "replace")[-300:]
            if done.timed_out:
                return Rejected("tests do not run", f"longer than {self._timeout_s:g} s")
            return json.loads(await sandbox.read_file("/logs/outcomes", _OUTCOMES_MAX))
        except (OSError, ValueError, RecursionError) as error:
            return Rejected("tests do not run", f"{error}: {said}")
        finally:
            await sandbox.destroy()


def compared(after: Outcomes | Rejected, before: Outcomes | Rejected) -> tuple[list[str], list[str]] | Rejected:
    """(fail-to-pass, pass-to-pass), both sorted, of what the tests said with the solution and without it."""
    if isinstance(after, Rejected):
        return after
    if isinstance(before, Rejected):
        if before.reason == "flaky":
            return before
        before = {}  # what the solution mends may be that they do not even start
    passing = {test for test, outcome in after.items() if outcome == "passed"}
    kept = {test for test in passing if before.get(test) == "passed"}
    if not passing:
        return Rejected("tests do not run", "none passes with the solution")
    return (sorted(passing - kept), sorted(kept)) if passing - kept else Rejected("no fail-to-pass")

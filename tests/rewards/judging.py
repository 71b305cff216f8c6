"""One test module in both forms in which Etude runs tests, and what judges solutions by them."""

import asyncio
from pathlib import Path

import pytest

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import Task
from etude.rewards.verifier import verify
from etude.tasks.verifiers import PytestRun, pytest_verifier, suite_verifier

SITE = str(Path(pytest.__file__).parents[1])


def suite_form(source, tests):
    return suite_verifier(source, "test_m", tests, 10.0)


def pytest_form(source, tests):
    run = PytestRun(SITE, {"test_m.py": source.encode()}, ("test_m.py",))
    return pytest_verifier(run, [f"test_m.py::{test.replace('.', '::')}" for test in tests], 20.0)


def both_forms(source, tests):
    return {"suite": suite_form(source, tests), "pytest": pytest_form(source, tests)}


def judged(verifier, *solutions):
    """The verdict on each solution: a text (of `m.py`), or several files by their path."""
    files = [{"m.py": each} if isinstance(each, str) else each for each in solutions]

    async def judge():
        backend = NamespaceBackend(NamespaceConfig(binds={SITE: SITE}))
        task = Task("judged", "", {"m.py": b""}, verifier)
        try:
            async with asyncio.timeout(200):  # a cheat may run until its verifier's own deadline, on a busy machine
                states = [{path: text.encode() for path, text in each.items()} for each in files]
                return [await verify(task, state, backend) for state in states]
        finally:
            await backend.close()

    return asyncio.run(judge())

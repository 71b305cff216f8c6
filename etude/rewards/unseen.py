"""Calls that no test makes, with the values of the reference solution: made in sandboxes, where a task is made.

Owns `unseen_calls` and `ask_unseen`, which gives a task of a repository such calls. They are kept only if a verifier
finds the solution right by the tests and them, twice. A function whose arguments or values are no plain data has none,
and neither has one that a right solution may well have otherwise: a method, one that no test calls by its name, one
whose parameters the solution changed, and a new one, unless the instruction says how it is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from etude import syntax
from etude.environments.base import Backend, SandboxSpec
from etude.errors import SandboxError
from etude.records import InfraFailed, Task, Verifier
from etude.rewards.verifier import verify
from etude.tasks.mined.split import is_source, is_test
from etude.tasks.verifiers import Call, HeldOutCalls, PytestRun, with_unseen

TIMEOUT_S = 60.0
RUNS = 2
Function = tuple[str, str]
"""(module, name)"""


async def ask_unseen(task: Task, run: PytestRun, backend: Backend) -> Task:
    """A sound task, which asks calls beside the tests of its run where it can; `provenance["unseen"]` counts them.

    That the task is sound is for its tests to say: calls would tell the solution from nothing where no test does.
    """
    right = {**task.files, **task.solution, **run.files}
    functions, away = [*changed_functions(task)], [path for path in run.files if is_test(path)]
    asked = HeldOutCalls((), away, run.environment)
    if functions:
        request = {**replace(run, lints=()).request(), "functions": functions}
        asked = await unseen_calls(right, request, asked, task.verifier, backend)
    verifier = with_unseen(task.verifier, asked)
    return replace(task, verifier=verifier, provenance={**task.provenance, "unseen": len(asked.calls)})


def changed_functions(task: Task) -> Iterator[Function]:
    """Of modules, those that the solution changes and that can be called as before, or as the instruction says."""
    for path, right in sorted(task.solution.items()):
        if is_source(path):
            module = path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
            before, after = _functions(task.files.get(path, b"")), _functions(right)
            for name, node in after.items():
                old, called = before.get(name), ast.unparse(node.args)
                if f"{name}({called})" in task.instruction if old is None else _differ(old, node):
                    yield module, name


async def unseen_calls(
    right: Mapping[str, bytes], request: Mapping[str, Any], unseen: HeldOutCalls, tests: Verifier, backend: Backend
) -> HeldOutCalls:
    """With calls; with none where no such call can be made, or `tests` and they do not pass together. `request` is as
    `tasks.inside.record` has it."""
    calls = await _drawn(right, request, backend, max(tests.timeout_s, TIMEOUT_S))
    asked = replace(unseen, calls=calls)
    for _ in range(RUNS if calls else 0):
        verdict = await verify(Task("unseen", "", {}, with_unseen(tests, asked)), right, backend)
        if isinstance(verdict, InfraFailed):
            raise SandboxError(verdict.what)
        if verdict.reward != 1.0:
            return replace(unseen, calls=())
    return asked


async def _drawn(
    right: Mapping[str, bytes], request: Mapping[str, Any], backend: Backend, timeout_s: float
) -> Sequence[Call]:
    sandbox = await backend.create(SandboxSpec(dict(right)))
    try:
        await sandbox.write_file("/tests/request", repr(dict(request)).encode())
        for name in ("record.py", "pytests.py"):
            await sandbox.write_file(f"/tests/{name}", (files("etude.tasks") / "inside" / name).read_bytes())
        done = await sandbox.exec("mkdir -p /logs; exec python3 -I -S -B /tests/record.py", timeout_s=timeout_s)
        if done.exit_code != 0:
            return []
        return syntax.literal((await sandbox.read_file("/logs/drawn", 1 << 20)).decode())
    except (OSError, ValueError, SyntaxError):  # the tests' own doing, or theirs whom they test
        return []
    finally:
        await sandbox.destroy()


def _functions(text: bytes) -> dict[str, ast.FunctionDef]:
    try:
        body = syntax.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def _differ(old: ast.FunctionDef, new: ast.FunctionDef) -> bool:
    return ast.dump(old.args) == ast.dump(new.args) and ast.dump(old) != ast.dump(new)

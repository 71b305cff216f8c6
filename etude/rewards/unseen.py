"""Calls that no test makes, with the values of the reference solution: made in sandboxes, where a task is made.

Owns `unseen_calls`. Every call is kept only if a verifier finds the solution right by it, in other processes. A
function whose arguments or values are no plain data has none.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.resources import files

from etude.environments.base import Backend, SandboxSpec
from etude.records import InfraFailed, Task
from etude.rewards.verifier import verify
from etude.tasks.verifiers import Call, calls_verifier

TIMEOUT_S = 60.0
RUNS = 2


async def unseen_calls(
    right: Mapping[str, bytes], module: str, function: str, check: str, away: list[str], backend: Backend
) -> list[Call]:
    """`check` is a script of the workspace that runs the tests. Empty where no such call can be made."""
    sandbox = await backend.create(SandboxSpec(dict(right)))
    try:
        request = repr({"module": module, "function": function, "check": check})
        await sandbox.write_file("/tests/request", request.encode())
        await sandbox.write_file("/tests/record.py", (files("etude.tasks") / "inside" / "record.py").read_bytes())
        done = await sandbox.exec("mkdir -p /logs; exec python3 -I -S -B /tests/record.py", timeout_s=TIMEOUT_S)
        if done.exit_code != 0:
            return []
        drawn = ast.literal_eval((await sandbox.read_file("/logs/drawn", 1 << 20)).decode())
    finally:
        await sandbox.destroy()
    calls: list[Call] = [(module, function, arguments, value) for arguments, value in drawn]
    for _ in range(RUNS if calls else 0):
        verdict = await verify(Task("unseen", "", {}, calls_verifier(calls, away=away)), right, backend)
        if isinstance(verdict, InfraFailed) or verdict.reward != 1.0:
            return []
    return calls

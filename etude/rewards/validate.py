"""Whether a task is sound: its solution passes, doing nothing fails, and both do so every time.

Owns `validate`, used for generated and real tasks alike, and by whoever brings tasks. What is tried is the real thing:
each run is `rewards.verifier.verify` in a fresh sandbox, which has no network.
"""

from __future__ import annotations

from dataclasses import dataclass

from etude.environments.base import Backend, SandboxSpec
from etude.errors import SandboxError
from etude.records import InfraFailed, Task
from etude.rewards.verifier import State, Verdict, verify

VISIBLE_CHECK = "check.py"
VISIBLE_CHECK_S = 20.0


@dataclass(frozen=True)
class Validation:
    """`problems` is empty for a sound task; `before` is the verdict on the untouched workspace."""

    task_id: str
    problems: tuple[str, ...]
    before: Verdict

    @property
    def sound(self) -> bool:
        return not self.problems


async def validate(task: Task, backend: Backend, runs: int = 2) -> Validation:
    """Judge the untouched workspace and the solved one, `runs` times each. Raises SandboxError when it cannot.

    A task with a visible check.py must also show by it what the verifier finds, before and after.
    """
    solved = {**task.files, **task.solution}
    problems = [] if task.solution else ["it has no solution"]
    before = await _verdict(task, task.files, backend)
    for number in range(1, runs + 1):
        untouched = before if number == 1 else await _verdict(task, task.files, backend)
        if untouched.reason != "failed" or untouched.reward != 0.0:
            problems.append(f"run {number}: doing nothing is {untouched.reason}, reward {untouched.reward:g}")
        done = await _verdict(task, solved, backend)
        if done.reason != "passed":
            problems.append(f"run {number}: the solution is {done.reason}: {done.detail.strip()[-200:]}")
        if problems:  # one problem is enough, and some cost seconds
            break
    if VISIBLE_CHECK in task.files and not problems:
        for name, files, expected in (("doing nothing", task.files, 1), ("the solution", solved, 0)):
            sandbox = await backend.create(SandboxSpec(files=files, image=task.image))
            try:
                seen = await sandbox.exec(f"python3 {VISIBLE_CHECK}", timeout_s=VISIBLE_CHECK_S)
            finally:
                await sandbox.destroy()
            if seen.exit_code != expected:
                problems.append(f"{VISIBLE_CHECK} after {name} exits with {seen.exit_code}: {seen.output[-200:]!r}")
    return Validation(task.id, tuple(problems), before)


async def _verdict(task: Task, state: State, backend: Backend) -> Verdict:
    verdict = await verify(task, state, backend)
    if isinstance(verdict, InfraFailed):
        raise SandboxError(verdict.what)
    return verdict

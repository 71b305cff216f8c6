"""Judges a final state, in a fresh sandbox the agent never saw.

Owns `verify` and the `Verdict`. The state is an archive of the agent's workspace, or plain files; the task's verifier
files are put in after the agent is gone, its command runs under a deadline, and /logs/verifier/reward.txt holds the
result, as in Harbor. What the code under test brings about (a crash, an endless loop, a broken reward file, a sandbox
that dies again and again under it) is a verdict of 0 with the reason; a sandbox that cannot be made or reached is
`InfraFailed`. Confusing the two either punishes the policy for our faults or lets it drop its failures from the data.
"""

from __future__ import annotations

import asyncio
import math
import posixpath
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from etude.environments.archive import Archive, StorageFailed, blamed
from etude.environments.base import WORKSPACE, Backend, ExecResult, Resources, Sandbox, SandboxSpec
from etude.errors import DeadlineExceeded, SandboxError, SandboxSpoiled
from etude.records import InfraFailed, Task
from etude.rewards.audit.protected import touched_protected
from etude.rewards.fresh import with_state
from etude.rewards.legible import State, legible
from etude.tasks.harbor import TEST_COMMANDS
from etude.tasks.verifiers import compiled_verifier

if TYPE_CHECKING:
    from etude.rewards.verdicts import Verdicts

REWARD_FILE = "/logs/verifier/reward.txt"

PATIENCE = 4
"""A run that meets its limit without having computed for most of it is tried once more, with so many times the limit:
the machine may have been too busy to let it, and that is ours. Who waits on purpose gains nothing by it."""
_COMPUTING = 0.5

Reason = Literal["passed", "failed", "timeout", "crashed", "no_reward", "blocked"]


@dataclass(frozen=True)
class Verdict:
    """What the tests say of a final state. `reward` is in [0, 1]; `reason` is "passed" where it is 1.

    "crashed": the command did not exit with status 0, so that no reward counts. "no_reward": it did, and left no number
    from 0 to 1. "blocked": nothing could be judged, for what the agent left could not be taken out or laid down, stands
    where the verifier's files must go, or is source that nobody can read.
    """

    reward: float
    reason: Reason
    detail: str = ""
    """The end of what the command printed, or what went wrong: for logs and reports, never for the agent."""
    touched: tuple[str, ...] = ()
    """Protected files (`provenance["protected"]`) that are not as the task gave them."""
    stripped: tuple[str, ...] = ()
    """What was left away before judging: code that nobody can read (`rewards.legible`)."""
    wall_s: float = 0.0
    known: bool = False
    """Whether it was given before, to the same state, and nothing was run."""


async def verify(
    task: Task,
    state: State,
    backend: Backend,
    resources: Resources | None = None,
    verdicts: Verdicts | None = None,
) -> Verdict | InfraFailed:
    """Run the task's verifier on a state, unless `verdicts` has the answer. Its sandbox is always destroyed."""
    started = time.monotonic()
    try:
        read = await asyncio.to_thread(legible, task.files, state)
    except SandboxSpoiled as error:
        return Verdict(0.0, "blocked", str(error), wall_s=time.monotonic() - started)
    except StorageFailed as error:
        return InfraFailed(f"{WORKSPACE} as a session of {task.id} left it: {error}")
    if read.refused:
        return Verdict(0.0, "blocked", read.refused, stripped=read.stripped, wall_s=time.monotonic() - started)
    verifying = partial(_verify, task, read.state, backend, resources or Resources(), started)
    if verdicts is None:
        ended = await verifying()
    else:
        where = backend.capabilities.name, resources or Resources()
        ended = await verdicts.verdict(task, read.state, where, verifying)
    return ended if isinstance(ended, InfraFailed) else replace(ended, stripped=read.stripped)


async def _verify(
    task: Task, state: State, backend: Backend, resources: Resources, started: float
) -> Verdict | InfraFailed:
    ran = starved = False
    archive, files = (state, {}) if isinstance(state, Archive) else (None, state)
    spec = SandboxSpec(files, task.image, resources=resources)

    async def work(sandbox: Sandbox) -> Verdict:
        nonlocal ran, starved
        ran = True
        limit_s = task.verifier.timeout_s * (PATIENCE if starved else 1)
        verdict = await _judge(task, sandbox, started, limit_s)
        if verdict.reason == "timeout":
            starved = (await sandbox.metrics()).cpu_s < _COMPUTING * limit_s * min(spec.resources.cpus, 1.0)
        return verdict

    try:
        verdict = await with_state(task, backend, spec, archive, work)
        return await with_state(task, backend, spec, archive, work) if starved else verdict
    except SandboxSpoiled as error:
        return Verdict(0.0, "crashed" if ran else "blocked", str(error)[:2000], wall_s=time.monotonic() - started)
    except (SandboxError, DeadlineExceeded) as error:
        return InfraFailed(f"verifier of {task.id}: {error}")


async def _judge(task: Task, sandbox: Sandbox, started: float, limit_s: float) -> Verdict:
    touched = await touched_protected(task, sandbox)

    def verdict(reward: float, reason: Reason, detail: str) -> Verdict:
        return Verdict(reward, reason, detail, touched, wall_s=time.monotonic() - started)

    for path, content in compiled_verifier(task.verifier).files.items():
        try:
            await sandbox.write_file(path, content)
        except OSError as error:
            if not path.startswith(f"{WORKSPACE}/"):
                raise SandboxError(f"cannot put {path} into the verifier's sandbox: {error}") from error
            wrong = blamed(error, f"cannot put {path} back")
            if not isinstance(wrong, SandboxSpoiled):
                raise wrong from error
            return verdict(0.0, "blocked", str(wrong))
    command = task.verifier.command
    if command in TEST_COMMANDS:  # Harbor makes the directory first, and its authors count on that
        command = f"mkdir -p {posixpath.dirname(REWARD_FILE)} && {command}"
    done = await sandbox.exec(command, timeout_s=limit_s, max_output_bytes=4000)
    detail = done.output.decode("utf-8", "replace")[-1000:]
    if done.timed_out:
        return verdict(0.0, "timeout", f"ran longer than {limit_s:g} s\n{detail}")
    return verdict(*await _read_reward(sandbox, done, detail))


async def _read_reward(sandbox: Sandbox, done: ExecResult, detail: str) -> tuple[float, Reason, str]:
    """The file counts only after exit status 0: otherwise the process that was to write it may not have."""
    try:
        text = (await sandbox.read_file(REWARD_FILE, max_bytes=100)).decode()
        reward = float(text)
    except (OSError, ValueError) as error:
        reason: Reason = "no_reward" if done.exit_code == 0 else "crashed"
        return 0.0, reason, f"exit {done.exit_code}, {REWARD_FILE}: {error}\n{detail}"
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        return 0.0, "no_reward", f"{REWARD_FILE} holds {text.strip()!r}, not a number from 0 to 1\n{detail}"
    if reward > 0.0 and done.exit_code != 0:
        return 0.0, "crashed", f"exit {done.exit_code} beside a reward of {reward:g}\n{detail}"
    return reward, "passed" if reward == 1.0 else "failed", detail

"""A final state in a sandbox that was never the agent's, and whose fault it is where nothing can be done with it there.

Owns `with_state`, which the verifier, the linters and a session that goes on have in common. What fails is tried again
in another sandbox; what fails there too, once more with what the task begins with. That is the control: where it works,
the agent's state is at fault, and SandboxSpoiled says so; where it does not, we are. A sandbox that cannot be made, a
server that is away and a disk that fails are never held against a state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from etude.environments.archive import Archive, StorageFailed, take_out, unpack
from etude.environments.base import Backend, Resources, Sandbox, SandboxSpec
from etude.environments.wire import ServerError
from etude.errors import DeadlineExceeded, Overloaded, SandboxError, SandboxSpoiled, Unreachable
from etude.records import Task
from etude.tasks.mined.shown import require_environments

ATTEMPTS = 2
"""Sandboxes that may die or hang with a state in them before there is a control."""
_CONTROL_S = 10.0
_DEFAULT = Resources()
_MAY_BE_THEIRS = ("lost", "ended", "sandbox")
"""What a server says of a sandbox that failed; all else it says of itself."""

T = TypeVar("T")
Work = Callable[[Sandbox], Awaitable[T]]


async def with_state(
    task: Task,
    backend: Backend,
    spec: SandboxSpec,
    archive: Archive | None,
    work: Work[T],
    control: Work[object] | None = None,
) -> T:
    """What `work` returns in a fresh sandbox of `spec` with the archive in it. `control` stands for it where there is
    nothing of the agent's: a small command if it is not given.

    Raises SandboxSpoiled, or the SandboxError or DeadlineExceeded that is ours."""
    failed: SandboxError | DeadlineExceeded
    for _ in range(ATTEMPTS):
        async with fresh(backend, spec) as sandbox:
            await require_environments(task, sandbox)
            try:
                if archive is not None:
                    await unpack(archive, sandbox)
                return await work(sandbox)
            except (SandboxError, DeadlineExceeded) as error:
                if not _may_be_theirs(error):
                    raise
                failed = error
        if isinstance(failed, SandboxSpoiled):
            break  # another would say the same
    await check_control(task, backend, failed, spec.resources, control)
    if isinstance(failed, SandboxSpoiled):
        raise failed
    raise SandboxSpoiled(f"{ATTEMPTS} sandboxes failed with it, and none did without: {failed}") from failed


async def check_control(
    task: Task,
    backend: Backend,
    failed: Exception,
    resources: Resources = _DEFAULT,
    work: Work[object] | None = None,
) -> None:
    """Take out what the task begins with, lay it down, and do the work there. Raises SandboxError where even that
    fails, as a session's own state `failed`."""
    try:
        async with fresh(backend, SandboxSpec(task.files, task.image, resources=resources)) as sandbox:
            given = await take_out(sandbox)
        async with fresh(backend, SandboxSpec(image=task.image, resources=resources)) as sandbox:
            await unpack(given, sandbox)
            await (work or _small_command)(sandbox)
    except (SandboxError, DeadlineExceeded) as error:
        raise SandboxError(f"{failed}; what {task.id} begins with fares no better: {error}") from failed


@asynccontextmanager
async def fresh(backend: Backend, spec: SandboxSpec) -> AsyncGenerator[Sandbox]:
    """A sandbox, destroyed whatever happens."""
    sandbox = await backend.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.destroy()


def _may_be_theirs(error: SandboxError | DeadlineExceeded) -> bool:
    if isinstance(error, ServerError):
        return error.kind in _MAY_BE_THEIRS
    return not isinstance(error, Overloaded | Unreachable | StorageFailed)


async def _small_command(sandbox: Sandbox) -> None:
    done = await sandbox.exec("echo works", timeout_s=_CONTROL_S)
    if done.output != b"works\n":
        raise SandboxError(f"sandbox {sandbox.id} runs no command: exit {done.exit_code}, {done.output[:200]!r}")

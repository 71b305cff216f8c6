"""Makes tasks of Harbor directories that other people wrote: builds the environment, and runs the solution.

    Dockerfile ─build─► image ─► sandbox ─solve.sh─► what changed in the working directory ─► Task ─validate─► Harbor

Owns `adopt`. The directory is read and nothing in it is changed. solve.sh runs in a sandbox without a network, as the
tests do; a solution that leaves anything but files in the working directory, or removes some, cannot be held by a Task
and is refused. Base images are those of the local image store: no registry is asked.
"""

from __future__ import annotations

import posixpath
import re
import tempfile
from dataclasses import replace
from pathlib import Path

from etude.environments.archive import take_out
from etude.environments.base import WORKSPACE, Sandbox, SandboxSpec
from etude.environments.images.build import BuildConfig, build_image
from etude.environments.images.store import ImageStore
from etude.environments.namespace import NamespaceBackend
from etude.errors import ConfigError
from etude.records import Task
from etude.rewards.contents import contents_of
from etude.tasks.foreign import Foreign, read_foreign

SOLVE_TIMEOUT_S = 600.0


async def adopt(
    directory: Path, store: ImageStore, backend: NamespaceBackend, config: BuildConfig | None = None
) -> Task:
    """The task of a directory; its image is in the store, under a name made of the task's.

    `backend` takes its images from `store`. Raises ConfigError for a directory that cannot be read and a solution that
    fails or cannot be held, and what building raises.
    """
    foreign = read_foreign(directory)
    task = foreign.task
    if foreign.context is not None:
        name = f"harbor-{re.sub(r'[^a-z0-9._-]+', '-', task.id.lower())}"
        await build_image(store, backend, foreign.context, name=name, config=config)
        task = replace(task, image=name)
    if not foreign.solution:
        return task
    with tempfile.TemporaryDirectory(prefix="etude-adopt-") as scratch:
        image = await _with_solution(foreign, task.image, Path(scratch), store, backend, config)
    return replace(task, solution=await _solved(foreign, task.id, image, backend))


async def _with_solution(
    foreign: Foreign, base: str, context: Path, store: ImageStore, backend: NamespaceBackend, config: BuildConfig | None
) -> str:
    """The id of an image, without a name, that has the solution at /solution too; no session ever starts on it."""
    for path, content in foreign.solution.items():
        (context / "solution" / path).parent.mkdir(parents=True, exist_ok=True)
        (context / "solution" / path).write_bytes(content)
    (context / "Dockerfile").write_text(f"FROM {base}\nCOPY solution/ /solution/\n")
    return (await build_image(store, backend, context, config=config)).image.id


async def _solved(foreign: Foreign, task_id: str, image: str, backend: NamespaceBackend) -> dict[str, bytes]:
    """The files that solve.sh writes or changes."""
    sandbox = await backend.create(SandboxSpec(image=image))
    try:
        before = await _files(sandbox)
        shell = "bash" if b"bash" in foreign.solution["solve.sh"].split(b"\n", 1)[0] else "sh"
        done = await sandbox.exec(f"{shell} /solution/solve.sh", timeout_s=SOLVE_TIMEOUT_S)
        if done.exit_code != 0:
            said = done.output.decode("utf-8", "replace")[-300:]
            raise ConfigError(f"solution/solve.sh of {task_id}: ended with {done.exit_code}: {said}")
        after = await _files(sandbox)
    finally:
        await sandbox.destroy()
    if gone := sorted(before.keys() - after.keys()):
        raise ConfigError(f"solution/solve.sh of {task_id}: removes {gone[0]}; a solution can only write files")
    changed = {path: content for path, content in after.items() if before.get(path) != content}
    if not changed:
        raise ConfigError(f"solution/solve.sh of {task_id}: changes nothing in the image's working directory")
    return changed


async def _files(sandbox: Sandbox) -> dict[str, bytes]:
    """The plain files of the working directory, by relative path."""
    found = contents_of(await take_out(sandbox)).items()
    files = {path: entry.data for path, entry in found if entry.target is None}
    return {posixpath.relpath(path, WORKSPACE): data for path, data in files.items() if data is not None}

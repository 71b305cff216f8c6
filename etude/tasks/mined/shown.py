"""How sandboxes come to see the environments of mined, generated and imported tasks: one way, whoever runs a task.

Owns `showing`, the config of a backend whose sandboxes see those of this machine; `install_missing`, what is done
before tasks are run; and `require_environments`, the look into the sandbox itself, by which an environment that is not
there is a failure of infrastructure on every backend, and never a verdict on what was left. `environment` installs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import structlog

from etude.environments.backends import default_config
from etude.environments.base import Sandbox
from etude.environments.plugin import BackendTable
from etude.errors import ConfigError, SandboxError
from etude.records import Task
from etude.tasks.mined.environment import PLACE, Environment, Environments, Unavailable, default_root

_LOOK_S = 10.0
_log = structlog.get_logger()


def environments_of(task: Task) -> tuple[Environment, ...]:
    """Those that its setup commands install."""
    return tuple(filter(None, map(Environment.of_setup, task.setup)))


def showing(config: BackendTable | None = None, root: Path | None = None) -> BackendTable:
    """The same, or the default, with the environments below `root` (None: where they are installed unless somebody says
    otherwise). What shows some already, or cannot show a directory of this machine, stays as it is."""
    config, root = config or default_config(), root or default_root()
    binds = getattr(config, "binds", None)
    if binds is None or PLACE in binds or not root.is_dir():
        return config
    return config.model_copy(update={"binds": {**binds, PLACE: root}})


async def install_missing(tasks: Iterable[Task], config: BackendTable | None = None, root: Path | None = None) -> None:
    """Install what the tasks need and is not there yet, just as it is pinned. Tasks that were mined on this machine
    find theirs there. Raises ConfigError naming those that cannot be had."""
    config, failed = config or default_config(), []
    binds = getattr(config, "binds", None)
    if binds is None:
        return
    root = root or binds.get(PLACE) or default_root()
    needed = {each: task.id for task in tasks for each in environments_of(task)}
    missing = {each: task for each, task in needed.items() if not each.is_installed(root)}
    if not missing:
        return
    environments = Environments(root)
    for environment, task in missing.items():
        _log.info("installing what a task needs", task=task, packages=", ".join(environment.pins))
        try:
            await environments.restore(environment)
        except Unavailable as error:
            failed.append(f"{task} needs {', '.join(environment.pins)}, which cannot be installed: {error}")
    if failed:
        raise ConfigError("; ".join(failed))


async def require_environments(task: Task, sandbox: Sandbox) -> None:
    """Raises SandboxError where a sandbox lacks an environment of its task."""
    for environment in environments_of(task):
        found = await sandbox.exec(f"test -d {environment.path}", timeout_s=_LOOK_S)
        if found.exit_code:
            raise SandboxError(
                f"the sandbox of {task.id} has no {environment.path}, which the task's setup command makes; "
                "show it there (`environment.binds`), or use an image that was built with it"
            )

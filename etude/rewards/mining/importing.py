"""Imports instances of SWE-bench and SWE-smith: each becomes a task, if its own tests say so here too.

    JSONL + clone ─► files ─► environment ─scrub─► task ─validate─► Harbor directory

Owns `Importer` and `import_instance`. The tests are those the instance names; the validator's verdict, in sandboxes
without a network, is what counts, not the data set's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from pydantic import Field

from etude.config import Config
from etude.environments.base import Backend
from etude.errors import ConfigError
from etude.records import Limits, Task
from etude.rewards.unseen import ask_unseen
from etude.rewards.validate import validate
from etude.tasks.difficulty import level_of
from etude.tasks.harbor import read_task, write_task
from etude.tasks.instance import Instance
from etude.tasks.mined.environment import Environments, Unavailable, requirements_of
from etude.tasks.mined.history import History
from etude.tasks.mined.split import is_pytest_setting, is_test
from etude.tasks.rubric import CHANGE
from etude.tasks.scrub import scrub_task
from etude.tasks.swe import files_of, modules_of
from etude.tasks.verifiers import PytestRun, pytest_verifier


class ImportConfig(Config):
    """How instances become tasks."""

    test_timeout_s: float = Field(300.0, gt=0)
    """For one run of an instance's tests."""
    workspace_mb: int = Field(48, ge=1, le=48)
    """The largest repository, without its history."""
    runs: int = Field(2, ge=1)
    """Of the validator."""
    eval_since: date | None = None
    """Instances created from this day on are for evaluation, all others for training."""


@dataclass(frozen=True)
class Importer:
    """Makes a task of each instance, in a directory of its own below `out`; of the repositories there are `clones`."""

    out: Path
    clones: Mapping[str, History]
    backend: Backend
    environments: Environments
    config: ImportConfig

    async def add(self, instance: Instance) -> None:
        """Write its task, if a command that was stopped has not. Raises ConfigError saying why there is none; what our
        own machinery raises goes through."""
        if instance.refused:
            raise ConfigError(instance.refused)
        directory = self.out / instance.task_id
        if directory.exists():
            _refuse_another(directory, instance)
            return
        if instance.repository not in self.clones:
            raise ConfigError(f"{instance.id}: give --clone {instance.repository}=DIR, a whole clone of it")
        history = self.clones[instance.repository]
        task = await import_instance(instance, history, self.backend, self.environments, self.config)
        write_task(task, directory)


def _refuse_another(directory: Path, instance: Instance) -> None:
    if not (directory / "task.toml").is_file():
        raise ConfigError(f"{directory}: is there already, and is no task; remove it")
    task = read_task(directory)
    of = task.provenance.get("instance_id", instance.id)  # older ones do not say it
    if task.id != instance.task_id or of != instance.id:
        raise ConfigError(
            f"{directory}: is there already, a task of {of if task.id == instance.task_id else task.id!r:.80}; "
            f"import {instance.id!r:.80} to another --out"
        )


async def import_instance(
    instance: Instance, history: History, backend: Backend, environments: Environments, config: ImportConfig
) -> Task:
    """A sound task. Raises ConfigError saying why there is none; what our own machinery raises goes through."""
    files = await asyncio.to_thread(files_of, instance, history, config.workspace_mb << 20)
    modules = modules_of(instance)
    try:
        environment = await environments.get(requirements_of(files.after))
    except Unavailable as error:
        raise ConfigError(f"{instance.id}: what its tests need cannot be installed: {error}") from None
    restored = {
        path: data for path, data in files.after.items() if is_test(path) or is_pytest_setting(path) or path in modules
    }
    run = PytestRun(environment.path, restored, modules)
    tests = [*instance.fail_to_pass, *instance.pass_to_pass]
    since, created = config.eval_since, (instance.created or "")[:10]
    task = Task(
        id=instance.task_id,
        instruction=f"{instance.statement.strip()}\n\nTests run with PYTHONPATH={run.environment} python3 -m pytest\n",
        files=files.given.files,
        verifier=pytest_verifier(run, tests, config.test_timeout_s),
        setup=(environment.setup,),
        solution={path: data for path, data in files.answer.items() if not is_test(path)},
        rubric=CHANGE,
        limits=Limits(max_turns=60, max_context_tokens=32_768, max_sampled_tokens=32_768, wall_s=1800.0),
        split="eval" if since is not None and created >= since.isoformat() else "train",
        provenance={
            "family": "swe", "repository": instance.repository, "commit": instance.commit, "committed": created,
            "environment": environment.key, "fail_to_pass": list(instance.fail_to_pass),
            "pass_to_pass": list(instance.pass_to_pass), "test_modules": list(modules),
            "left_out": list(files.given.left_out), "instance_id": instance.id, "instance": dict(instance.about),
        },
    )  # fmt: skip
    task = replace(task, provenance={**task.provenance, "difficulty": {"level": level_of(task)}})
    task, scrubbed = await asyncio.to_thread(scrub_task, task)
    if scrubbed.leaks:
        raise ConfigError(f"{instance.id}: its workspace tells the answer: {scrubbed.leaks[0]}")
    if runs := [path for path in files.given.executable if path in task.files]:
        task = replace(task, provenance={**task.provenance, "executable": runs})
    found = await validate(task, backend, runs=config.runs)
    if not found.sound:
        raise ConfigError(f"{instance.id}: not sound: {'; '.join(found.problems)}")
    return await ask_unseen(task, run, backend)

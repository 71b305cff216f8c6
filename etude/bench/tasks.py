"""The tasks of a benchmark, always the same in the same order.

Owns `load_tasks`, and the fingerprints by which two runs know that they played the same. Talks to: tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from etude.bench.config import LimitsConfig, TaskSetConfig
from etude.errors import ConfigError
from etude.records import Task
from etude.tasks.families import FAMILIES
from etude.tasks.harbor import read_task


def load_tasks(config: TaskSetConfig, limits: LimitsConfig | None = None) -> list[Task]:
    """Every task that is named. Raises ConfigError where there is none, or two have one id."""
    tasks = [read_task(path) for directory in config.directories for path in _task_directories(directory)]
    ladder = FAMILIES["ladder"]
    tasks += ladder.evaluation("eval", config.ladder) + ladder.evaluation("heldout", config.heldout)
    if config.real:
        from etude.tasks.realcode import real_tasks

        tasks += real_tasks()
    if not tasks:
        raise ConfigError("tasks: none are named; give task directories, or set ladder, heldout or real")
    if twice := [name for name, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise ConfigError(f"tasks: {twice[0]} is there twice; a task's id must be its own")
    given = {} if limits is None else limits.model_dump(exclude_none=True)
    return [replace(task, limits=replace(task.limits, **given)) for task in tasks]


def _task_directories(directory: Path) -> list[Path]:
    if (directory / "task.toml").is_file():
        return [directory]
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such task directory")
    found = sorted(path.parent for path in directory.glob("*/task.toml"))
    if not found:
        raise ConfigError(f"{directory}: neither a task directory nor one of such; there is no task.toml in it")
    return found


def fingerprint(task: Task) -> str:
    """Of all that a session and its verdict depend on, solution and provenance left out."""
    said = {
        "instruction": task.instruction,
        "files": _hashes(task.files),
        "tests": _hashes(task.verifier.files),
        "verifier": [task.verifier.command, task.verifier.timeout_s],
        "image": task.image,
        "setup": list(task.setup),
        "limits": asdict(task.limits),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}

"""The tasks of a benchmark, always the same in the same order.

Owns `load_tasks`, and the fingerprints by which two runs know that they played the same. Talks to: tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from etude.bench.config import TaskSetConfig
from etude.errors import ConfigError
from etude.records import Task
from etude.tasks.families import LADDER
from etude.tasks.harbor import read_tasks, refuse_duplicate_ids
from etude.tasks.limits import LimitsConfig


def load_tasks(config: TaskSetConfig, limits: LimitsConfig | None = None) -> list[Task]:
    """Every task that is named. Raises ConfigError where there is none, or two have one id."""
    tasks = read_tasks(config.directories) if config.directories else []
    tasks += LADDER.evaluation("eval", config.ladder) + LADDER.evaluation("heldout", config.heldout)
    if config.real:
        from etude.tasks.real import real_tasks

        tasks += real_tasks(config.real)
    if not tasks:
        raise ConfigError("tasks: none are named; give task directories, or set ladder, heldout or real")
    refuse_duplicate_ids(tasks)
    if config.sample > len(tasks):
        raise ConfigError(f"tasks.sample: {config.sample} of {len(tasks)} tasks; give at most as many as there are")
    if config.sample:
        drawn = set(sorted((task.id for task in tasks), key=_drawn)[: config.sample])
        tasks = [task for task in tasks if task.id in drawn]
    return limits.given_to(tasks) if limits is not None else tasks


def _drawn(task_id: str) -> str:
    """Where a task stands in the draw: by its id alone, so that a larger sample holds a smaller one."""
    return hashlib.sha256(task_id.encode()).hexdigest()


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

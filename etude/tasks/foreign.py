"""Harbor tasks as other people write them: an environment to be built, a solution to be run, tests in any shell.

Owns `Foreign` and `read_foreign`, which reads such a directory and runs nothing; `rewards.mining.adopt` builds and
runs, and makes a Task of it. What Etude has no place for is refused with its path, as `harbor.read_task` does. Source:
the Harbor task format, schema_version 1.4, and 1.0 to 1.3, which say less.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.config import parse
from etude.errors import ConfigError
from etude.records import Limits, Task, Verifier
from etude.tasks.harbor import (
    SCHEMA,
    TEST_COMMAND,
    TEST_COMMANDS,
    HarborTask,
    read_files,
    read_text,
    read_toml,
    refuse_links,
    rest_of,
)
from etude.tasks.names import ID_RULE, is_id

LIMITS = Limits(max_turns=60, max_context_tokens=32_768, max_sampled_tokens=32_768)
"""Harbor's tasks limit the time alone."""
_EARLIER = ("1.0", "1.1", "1.2", "1.3")
_KNOWN = {"task.toml", "instruction.md", "environment", "tests", "solution", "README.md", ".gitignore"}


@dataclass(frozen=True)
class Foreign:
    """`task` is all but the image and the solution, which have to be made."""

    task: Task
    context: Path | None
    """The directory with the Dockerfile; None where the task only names an image. Where it has both, the image is one
    that somebody has built of the Dockerfile, and so it is built here."""
    solution: Mapping[str, bytes]
    """The files of solution/, solve.sh among them; empty where there is none."""


def read_foreign(directory: Path) -> Foreign:
    """Read a task directory. Raises ConfigError with the path of what is missing, wrong or not supported."""
    refuse_links(directory)
    path = directory / "task.toml"
    raw = read_toml(path)
    _call_version_by_its_name(raw)
    raw.setdefault("task", {"name": f"harbor/{_plain(directory.resolve().name)}"})
    written = parse(raw, HarborTask, str(path))
    if not is_id(written.task.name):
        raise ConfigError(f"{path}: task.name: {written.task.name!r:.80} can be no task's id: {ID_RULE}")
    if extra := sorted(set(os.listdir(directory)) - _KNOWN):
        raise ConfigError(f"{directory / extra[0]}: not supported by Etude; it would be lost")
    environment = directory / "environment"
    if sorted(environment.glob("*compose*")):
        raise ConfigError(f"{environment}: several containers cannot be run; give it one Dockerfile")
    has_dockerfile = (environment / "Dockerfile").is_file()
    if not has_dockerfile and written.environment.docker_image is None:
        raise ConfigError(f"{path}: give environment.docker_image or environment/Dockerfile")
    tests = read_files(directory / "tests")
    if "test.sh" not in tests:
        raise ConfigError(f"{directory}/tests/test.sh: missing; it judges the task")
    if "Dockerfile" in tests:
        raise ConfigError(f"{directory}/tests/Dockerfile: tests in an environment of their own are not supported")
    solution = read_files(directory / "solution")
    if solution and "solve.sh" not in solution:
        raise ConfigError(f"{directory}/solution/solve.sh: missing; it makes the solution")
    verifier = Verifier(
        {f"/tests/{name}": data for name, data in tests.items()}, _command(tests["test.sh"]),
        written.verifier.timeout_sec,
    )  # fmt: skip
    rest = rest_of(written, written.task.name)
    task = Task(
        id=written.task.name,
        instruction=read_text(directory / "instruction.md"),
        files={},
        verifier=verifier,
        image="host" if has_dockerfile else written.environment.docker_image or "host",
        limits=replace(LIMITS, wall_s=written.agent.timeout_sec),
        provenance={"family": "harbor", **written.metadata, **({"harbor": rest} if rest else {})},
    )
    return Foreign(task, environment if has_dockerfile else None, solution)


def _call_version_by_its_name(raw: dict[str, Any]) -> None:
    """As Harbor does: its first tasks say `version`. What 1.0 to 1.3 can say, 1.4 says in the same words."""
    said = raw.pop("version", None)
    if raw.setdefault("schema_version", said) in _EARLIER:
        raw["schema_version"] = SCHEMA


def _command(script: bytes) -> str:
    """With the shell that the script's first line asks for."""
    first = script.split(b"\n", 1)[0]
    return TEST_COMMANDS[1] if first.startswith(b"#!") and b"bash" in first else TEST_COMMAND


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "task"

"""Tasks on disk: Harbor task directories, schema 1.4.

    task.toml               who and what; all else a Task holds is under [metadata.etude]
    instruction.md          what the agent reads, byte for byte
    environment/workspace/  the files the agent starts from; environment/Dockerfile builds an image that holds them
    tests/                  the verifier's files, uploaded to /tests after the agent is gone; test.sh is its command
    solution/               files/ of the reference solution; solve.sh copies them into the workspace

Owns `write_task` and `read_task`, which return each other's input. `read_task` takes what Etude wrote, and other
authors' tasks as far as a Task can hold them; anything else is refused with its path, never dropped. Runs nothing of a
task. Source: the Harbor task format, schema_version 1.4.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, field_validator

from etude.config import Config, parse, parse_toml
from etude.durable import naming
from etude.errors import ConfigError
from etude.records import Limits, Task, Verifier
from etude.tasks.names import ID_RULE, is_id

SCHEMA = "1.4"
HOST_IMAGE = "python:3.11-slim-bookworm"
"""What image "host" means where there is no host to borrow the toolchain from."""
TEST_COMMAND = "sh /tests/test.sh"
TEST_COMMANDS = (TEST_COMMAND, "bash /tests/test.sh")
"""Those that run a task's own tests/test.sh; any other command is written into it."""
_SOLVE = "#!/bin/sh\nset -e\ncp -R /solution/files/. /workspace/\n"
_EXECUTABLE = "executable"
"""Key of the provenance that lists workspace files with the executable bit."""
_MOST_BYTES = 1 << 30
"""Of all files of a task: far more than any needs, and they are read into memory."""
_REST = "harbor"
"""Key of the provenance for what other authors said in [task] and [environment] and a Task has no place for."""


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


_LISTS = (_EXECUTABLE, "protected", "facts")
"""Keys of the provenance that say which files, or which texts, and that others read."""
_DIRECTORIES = ("environment", "tests", "solution")
_FILES = ("task.toml", "instruction.md", "environment/Dockerfile", "solution/solve.sh")
"""What a task holds; each must be what it is called here."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskSection(_Strict):
    """[task]: the name is `organisation/name`."""

    name: str
    version: str = "1"
    description: str = ""
    authors: list[dict[str, str]] = []
    keywords: list[str] = []


class AgentSection(_Strict):
    timeout_sec: Seconds = 600.0


class VerifierSection(_Strict):
    timeout_sec: Seconds = 600.0
    environment_mode: Literal["shared"] = "shared"


class EnvironmentSection(_Strict):
    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    network_mode: Literal["no-network"] = "no-network"


class EtudeSection(Config):
    """[metadata.etude]: what Harbor has no place for."""

    id: str
    split: Literal["train", "eval", "heldout", "real"] = "train"
    image: str = "host"
    setup: tuple[str, ...] = ()
    rubric: tuple[str, ...] = ()
    command: str = TEST_COMMAND
    max_turns: Count = Limits.max_turns
    max_context_tokens: Count = Limits.max_context_tokens
    max_sampled_tokens: Count = Limits.max_sampled_tokens

    @field_validator("id")
    @classmethod
    def _is_an_id(cls, value: str) -> str:
        if not is_id(value):
            raise ValueError(f"{value!r:.80} is none: {ID_RULE}")
        return value


class HarborTask(Config):
    """task.toml. [metadata] is free: `etude` is ours, all else is the task's provenance."""

    schema_version: Literal["1.4"]
    task: TaskSection
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()

    @field_validator("metadata")
    @classmethod
    def _is_what_others_read(cls, said: dict[str, Any]) -> dict[str, Any]:
        for key in _LISTS:
            found = said.get(key, [])
            if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                raise ValueError(f"{key}: must be a list of texts")
        if _REST in said:
            raise ValueError(f"{_REST}: this key is Etude's own; rename it")
        return said


# --- writing ----------------------------------------------------------------------------------------------------------


def write_task(task: Task, directory: Path) -> None:
    """Write `directory`, which must not exist; it appears whole or not at all. Raises ConfigError naming the field."""
    if directory.exists():
        raise ConfigError(f"{directory}: exists already; remove it or name another directory")
    files = _layout(task)
    directory.parent.mkdir(parents=True, exist_ok=True)
    executable = set(task.provenance.get(_EXECUTABLE, ()))
    with naming(directory), tempfile.TemporaryDirectory(prefix=".writing-", dir=directory.parent) as partial:
        root = Path(partial) / "task"
        for path, content in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            runs = (
                path in ("tests/test.sh", "solution/solve.sh")
                or path.removeprefix("environment/workspace/") in executable
            )
            target.chmod(0o755 if runs else 0o644)
        root.rename(directory)


def _layout(task: Task) -> dict[str, bytes]:
    """Every file of the directory, by its relative path."""
    for path in task.provenance.get(_EXECUTABLE, ()):
        if path not in task.files:
            raise ConfigError(f"provenance.{_EXECUTABLE}: there is no file {path!r}")
    tests = {}
    for path, content in task.verifier.files.items():
        if not path.startswith("/tests/"):
            raise ConfigError(f"verifier.files: {path!r} is not below /tests, where Harbor puts a verifier's files")
        tests[path.removeprefix("/tests/")] = content
    if task.verifier.command not in TEST_COMMANDS:
        if "test.sh" in tests:
            raise ConfigError(
                f"verifier.command: with a /tests/test.sh it must be {TEST_COMMAND!r}, as Harbor runs that"
            )
        tests["test.sh"] = _test_script(task.verifier.command)
    elif "test.sh" not in tests:
        raise ConfigError("verifier.files: there is no /tests/test.sh for verifier.command to run")
    layout = {
        "task.toml": _toml(task),
        "instruction.md": _utf8(task.instruction, "instruction"),
        "environment/Dockerfile": _dockerfile(task),
    }
    for root, files in (("environment/workspace", task.files), ("tests", tests), ("solution/files", task.solution)):
        _check_paths(files, root)
        layout |= {f"{root}/{path}": content for path, content in files.items()}
    if task.solution:
        layout["solution/solve.sh"] = _SOLVE.encode()
    return layout


def _toml(task: Task) -> bytes:
    for key, value in task.provenance.items():
        _check_toml(value, f"provenance.{key}")
    if "etude" in task.provenance:
        raise ConfigError("provenance.etude: this key is Etude's own in task.toml; rename it")
    if not re.fullmatch(r"\S+", task.image):
        raise ConfigError(f"image: {task.image!r} is no image's name")
    limits = task.limits
    own = parse(
        {
            "id": task.id, "split": task.split, "image": task.image, "setup": task.setup, "rubric": task.rubric,
            "command": task.verifier.command, "max_turns": limits.max_turns,
            "max_context_tokens": limits.max_context_tokens, "max_sampled_tokens": limits.max_sampled_tokens,
        },
        EtudeSection, "task",
    )  # fmt: skip
    rest = dict(task.provenance.get(_REST, {}))
    provenance = {key: value for key, value in task.provenance.items() if key != _REST}
    image = {} if task.image == "host" else {"docker_image": task.image}
    raw = {
        "schema_version": SCHEMA,
        "task": {"name": _name(task.id), **rest.pop("task", {})},
        "metadata": {**provenance, "etude": own.model_dump(mode="json")},
        "agent": {"timeout_sec": limits.wall_s},
        "verifier": {"timeout_sec": task.verifier.timeout_s},
        "environment": {**rest.pop("environment", {}), **image},
        **rest,
    }
    written = parse(raw, HarborTask, f"provenance.{_REST}")
    return _utf8(tomli_w.dumps(written.model_dump(exclude_none=True)), "task.toml")


def _dockerfile(task: Task) -> bytes:
    """The same image elsewhere: base, workspace, setup, without a way to the network at run time."""
    lines = [f"FROM {HOST_IMAGE if task.image == 'host' else task.image}", "WORKDIR /workspace"]
    if task.files:
        lines.append("COPY workspace/ /workspace/")
    shells = [json.dumps(["/bin/sh", "-c", command], ensure_ascii=False) for command in task.setup]
    lines += [f"RUN {shell}" for shell in shells]  # exec form: a command of several lines stays one instruction
    return _utf8("\n".join(lines) + "\n", "setup")


def _test_script(command: str) -> bytes:
    return f"#!/bin/sh\n{command}\n".encode()


def _name(task_id: str) -> str:
    """The id in the letters Harbor allows for a name."""
    return "etude/" + (re.sub(r"[^a-z0-9._-]+", "-", task_id.lower()).strip("-.") or "task")


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{field}: holds half of a surrogate pair, which no UTF-8 file can") from None


def _check_paths(paths: Iterable[str], root: str) -> None:
    known = set(paths)
    for path in known:
        parts = PurePosixPath(path)
        plain = path and not parts.is_absolute() and ".." not in parts.parts and str(parts) == path and path != "."
        if not plain or "\0" in path:
            raise ConfigError(f"{root}: {path!r} must be a plain relative path, without '..', '.' or '//'")
        if any(str(parent) in known for parent in parts.parents):
            raise ConfigError(f"{root}: {path!r} lies below a path that is itself a file")


def _check_toml(value: Any, where: str) -> None:
    """Only what comes back from TOML as it was: no None, no tuple, no keys that are not text."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{where}: the key {key!r} is not text")
            _check_toml(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_toml(item, f"{where}[{index}]")
    elif type(value) not in (str, bool, int, float):
        raise ConfigError(f"{where}: {value!r} is not text, number, bool, list or table, which is all TOML can hold")


# --- reading ----------------------------------------------------------------------------------------------------------


def read_task(directory: Path) -> Task:
    """Read a task directory. Raises ConfigError with the path of what is missing, wrong or more than a Task holds."""
    executable = refuse_links(directory)
    written = parse(read_toml(directory / "task.toml"), HarborTask, str(directory / "task.toml"))
    metadata = dict(written.metadata)
    own = parse(
        metadata.pop("etude", {"id": written.task.name}), EtudeSection, f"{directory}/task.toml: metadata.etude"
    )
    files, tests = read_files(directory / "environment" / "workspace"), read_files(directory / "tests")
    if own.command not in TEST_COMMANDS and tests.pop("test.sh", None) != _test_script(own.command):
        raise ConfigError(
            f"{directory}/tests/test.sh: does not run metadata.etude.command; set that to {TEST_COMMAND!r}"
        )
    if own.command in TEST_COMMANDS and "test.sh" not in tests:
        raise ConfigError(f"{directory}/tests/test.sh: missing; it judges the task")
    if executable:
        metadata[_EXECUTABLE] = executable
    rest = rest_of(written, own.id)
    if rest:
        metadata[_REST] = rest
    task = Task(
        id=own.id,
        instruction=read_text(directory / "instruction.md"),
        files=files,
        verifier=Verifier(
            {f"/tests/{path}": data for path, data in tests.items()}, own.command, written.verifier.timeout_sec
        ),
        image=own.image if own.image != "host" else written.environment.docker_image or "host",
        setup=own.setup,
        solution=_read_solution(directory / "solution"),
        rubric=own.rubric,
        limits=Limits(own.max_turns, own.max_context_tokens, own.max_sampled_tokens, written.agent.timeout_sec),
        split=own.split,
        provenance=metadata,
    )
    _check_rest(directory, task)
    return task


def read_tasks(directories: Sequence[Path]) -> list[Task]:
    """Of task directories and directories of such, in order of their names. Raises ConfigError where there is none, or
    two have one id."""
    tasks = [read_task(path) for directory in directories for path in task_directories(directory)]
    refuse_duplicate_ids(tasks)
    return tasks


def refuse_duplicate_ids(tasks: Sequence[Task]) -> None:
    """Raises ConfigError where two tasks have one id."""
    if twice := [name for name, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise ConfigError(f"tasks: {twice[0]} is there twice; a task's id must be its own")


def task_directories(directory: Path) -> list[Path]:
    """The directory itself where it is a task's, else those of tasks in it. Raises ConfigError where there is none."""
    if (directory / "task.toml").is_file():
        return [directory]
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such task directory")
    found = sorted(path.parent for path in directory.glob("*/task.toml"))
    if not found:
        raise ConfigError(f"{directory}: neither a task directory nor one of such; there is no task.toml in it")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """A task.toml as it is written. Raises ConfigError with its path."""
    try:
        return parse_toml(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_text(path: Path) -> str:
    """A file of UTF-8. Raises ConfigError with its path."""
    try:
        return path.read_bytes().decode()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: missing") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None


def _read_solution(directory: Path) -> Mapping[str, bytes]:
    if not directory.exists():
        return {}
    if set(os.listdir(directory)) != {"files", "solve.sh"} or read_text(directory / "solve.sh") != _SOLVE:
        raise ConfigError(
            f"{directory}/solve.sh: only a solution that copies files/ into the workspace can be read; "
            "`etude tasks adopt` runs any other, and writes what it did"
        )
    return read_files(directory / "files")


def read_files(root: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path relative to it; none where there is no such directory. Raises
    ConfigError where it is a file."""
    if root.is_file():
        raise ConfigError(f"{root}: a file; it must be a directory")
    files = (Path(parent, name) for parent, _, names in os.walk(root) for name in sorted(names))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def refuse_links(directory: Path) -> list[str]:
    """A link could lead anywhere, so there may be none, and all files must fit the memory. What has a name of the
    format must be what the format says, too. Returns the workspace's executable files."""
    workspace = directory / "environment" / "workspace"
    executable, size = [], 0
    for parent, directories, names in os.walk(directory):
        for path in (Path(parent, name) for name in (*directories, *names)):
            found = path.lstat()
            mode, size = found.st_mode, size + (found.st_size if stat.S_ISREG(found.st_mode) else 0)
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise ConfigError(f"{path}: a link or special file; a task holds plain files only")
            if size > _MOST_BYTES:
                raise ConfigError(
                    f"{path}: with it the task has more than {_MOST_BYTES >> 20} MB; leave such files out"
                )
            if stat.S_ISREG(mode) and mode & stat.S_IXUSR and path.is_relative_to(workspace):
                executable.append(path.relative_to(workspace).as_posix())
    if wrong := [name for name in _FILES if (directory / name).is_dir()]:
        raise ConfigError(f"{directory / wrong[0]}: a directory; it must be a file")
    if wrong := [name for name in _DIRECTORIES if (directory / name).is_file()]:
        raise ConfigError(f"{directory / wrong[0]}: a file; it must be a directory")
    return sorted(executable)


def rest_of(written: HarborTask, task_id: str) -> dict[str, Any]:
    """What [task] and [environment] say beyond a Task; it stands in the provenance under `harbor`."""
    task = written.task.model_dump(exclude_defaults=True)
    if written.task.name == _name(task_id):
        del task["name"]
    environment = written.environment.model_dump(exclude_defaults=True, exclude={"docker_image"})
    return {key: value for key, value in (("task", task), ("environment", environment)) if value}


def _check_rest(directory: Path, task: Task) -> None:
    """Refuse what would be lost: another Dockerfile than ours, and files a Task has no place for."""
    dockerfile = directory / "environment" / "Dockerfile"
    if dockerfile.exists() and dockerfile.read_bytes() != _dockerfile(task):
        raise ConfigError(
            f"{dockerfile}: differs from what the task says; `etude tasks adopt {directory}` builds it, and writes a "
            "task that says so"
        )
    known = {"task.toml", "instruction.md", "environment", "tests", "solution"}
    extra = [directory / name for name in sorted(set(os.listdir(directory)) - known)]
    if (directory / "environment").is_dir():
        inner = set(os.listdir(directory / "environment")) - {"Dockerfile", "workspace"}
        extra += [directory / "environment" / name for name in sorted(inner)]
    if extra:
        raise ConfigError(f"{extra[0]}: not supported by Etude; it would be lost")

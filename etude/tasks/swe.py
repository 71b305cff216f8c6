"""Instances of SWE-bench and its kin, as tasks: a line of JSON and a local clone give the files before and after.

Owns `read_instances` and `files_of`. An instance names a commit and carries patches; nothing is downloaded,
and the clone is only read. SWE-bench and SWE-Gym: `patch` is the solution, `test_patch` brings the tests. SWE-smith:
`patch` is a bug, laid over a commit that is right. R2E-Gym: a commit is the solution (`r2e`). What of a line is not
taken is said with its reason, and a line that is wrong is refused by itself, with file, line and field. Source: the
data sets' own descriptions. Runs nothing but `git apply` (`patches`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.errors import ConfigError
from etude.tasks.instance import Instance, refusal
from etude.tasks.json_lines import parsed, read_lines
from etude.tasks.mined.history import History, Tree
from etude.tasks.names import ID_RULE, is_id
from etude.tasks.patches import apply_patch
from etude.tasks.r2e import R2E_FIELDS, r2e_instance

_MIRROR = re.compile(r"^(?:[^/]+/)?(?P<owner>[^/]+)__(?P<name>[^/]+)\.(?P<commit>[0-9a-f]{7,40})$")
"""How SWE-smith names a repository: with its commit."""

_LOOKED_AT = 1 << 20
"""Bytes of a file that tell what it is."""
_NOT_TAKEN = {
    "hints_text": "not shown to the agent; it was said after the issue, and often tells the answer",
    "image_name": "not used; what the tests need is installed as the repository asks for it",
    "eval_cmd": "not run; tests are run by pytest, by their names",
    "test_cmd": "not run; tests are run by pytest, by their names",
    "install_config": "not used; what the tests need is installed as the repository asks for it",
}
"""What published lines say and a task has nothing of, and why."""


@dataclass(frozen=True)
class Files:
    """`given` is what the agent finds, `answer` the files the solution changes, `after` all files with it and tests."""

    given: Tree
    answer: dict[str, bytes]
    after: dict[str, bytes]


def read_instances(path: Path) -> list[Instance]:
    """Every line of a JSONL file; one that can be no task says why, with its number and the field. Raises ConfigError
    for what is no such file.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: {_not_a_file(path)}")
    wanted = "an instance is an object, with its fields by name"
    found, first = list[Instance](), dict[str, Instance]()
    lines = list(read_lines(path, wanted))
    wrong = [said for _, said in lines if isinstance(said, ConfigError)]
    if wrong and len(wrong) == len(lines):
        raise wrong[0]
    for where, said in lines:
        instance = replace(_read(said, where), where=where)
        other = instance if instance.refused else first.setdefault(instance.task_id, instance)
        if other is not instance:
            clash = (
                f"{where}: instance_id: its task would be {other.task_id}, as that of {other.id!r:.80} ({other.where})"
            )
            instance = replace(instance, refused=f"{clash}; give it another, or leave one out")
        found.append(instance)
    if not found:
        raise ConfigError(f"{path}: holds no instances")
    return found


def _read(said: Mapping[str, Any] | ConfigError, where: str) -> Instance:
    if isinstance(said, ConfigError):
        return refusal(where, str(said))
    try:
        instance = (r2e_instance if all(name in said for name in R2E_FIELDS) else _instance)(said, where)
        if not is_id(instance.task_id):
            raise ConfigError(f"{where}: instance_id: {instance.id!r:.80} can name no task: {ID_RULE}")
        return instance
    except ConfigError as error:
        name = said.get("instance_id")
        return refusal(name if isinstance(name, str) and name.strip() else where, str(error))


def _not_a_file(directory: Path) -> str:
    """What to do with a directory, by what it is."""
    if (directory / "task.toml").is_file() or next(directory.glob("*/task.toml"), None):
        return "a directory of Harbor's; `etude tasks adopt` builds and solves it, and makes a task of it"
    if any(b"def load_environment" in _start(path) for path in directory.glob("**/*.py") if path.is_file()):
        return (
            "an environment of verifiers: its rubric is functions that judge a conversation in their own process, and "
            "a task is judged by a command in a sandbox; give a JSONL file of the instances that it is made of"
        )
    return "a directory; name a JSONL file of instances"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LOOKED_AT)


def files_of(instance: Instance, history: History, most_bytes: int) -> Files:
    """The files of an instance, from a clone of its repository. Raises ConfigError where the clone has not the commit,
    a patch does not apply, or the solution removes files, which a Task cannot say.
    """
    if instance.refused:
        raise ConfigError(f"{instance.id}: {instance.refused}")
    try:
        commit = history.head(instance.commit)
    except ConfigError:
        raise ConfigError(
            f"{instance.id}: {history.path} has no commit {instance.commit}; give a clone of {instance.repository}"
        ) from None
    tree = history.tree(commit, most_bytes)
    if tree is None:
        raise ConfigError(f"{instance.id}: its workspace is larger than {most_bytes >> 20} MB")
    if instance.fixed:
        given, right = tree.files, _solved(instance, history, most_bytes)
    else:
        patched = _patched(instance, "patch", tree.files, instance.patch, most_bytes)
        given, right = (patched, tree.files) if instance.is_bug else (tree.files, patched)
    if gone := sorted(given.keys() - right.keys()):
        raise ConfigError(f"{instance.id}: its solution removes {gone[0]}; a task's solution can only write files")
    answer = {path: data for path, data in right.items() if given.get(path) != data}
    if not answer:
        raise ConfigError(f"{instance.id}: its patch changes the contents of no file")
    after = right
    if instance.test_patch.strip():
        after = _patched(instance, "test_patch", right, instance.test_patch, most_bytes)
    return Files(Tree(given, tree.executable, tree.left_out), answer, {**after, **instance.tests})


def _solved(instance: Instance, history: History, most_bytes: int) -> Mapping[str, bytes]:
    tree = history.tree(history.head(instance.fixed), most_bytes)
    if tree is None:
        raise ConfigError(f"{instance.id}: its workspace is larger than {most_bytes >> 20} MB")
    return tree.files


def modules_of(instance: Instance) -> tuple[str, ...]:
    """The modules of the tests that are named. Raises ConfigError for names that are not pytest's."""
    for test in (*instance.fail_to_pass, *instance.pass_to_pass):
        if not re.match(r"[^:\s][^:]*\.py::", test):
            raise ConfigError(
                f"{instance.id}: {test!r} is not how pytest names a test (path.py::name); no other runner is supported"
            )
    return tuple(sorted({test.split("::")[0] for test in (*instance.fail_to_pass, *instance.pass_to_pass)}))


def _instance(record: Mapping[str, Any], where: str) -> Instance:
    instance_id, repository = _text(record, "instance_id", where), _text(record, "repo", where)
    mirror = _MIRROR.match(repository)
    if mirror is None and "base_commit" not in record:
        raise ConfigError(f"{where}: base_commit: missing, and repo {repository!r} names no commit as SWE-smith's do")
    commit = record["base_commit"] if "base_commit" in record else mirror and mirror["commit"]
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ConfigError(f"{where}: base_commit: {commit!r} is no commit's id")
    is_bug = "test_patch" not in record
    tests = {name: _tests(record, name, where) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    if not tests["FAIL_TO_PASS"]:
        raise ConfigError(f"{where}: FAIL_TO_PASS: names no test, so that nothing would tell a solution")
    kept = ("version", "difficulty", "image_name", "environment_setup_commit", "language")
    return Instance(
        id=instance_id,
        repository=f"{mirror['owner']}/{mirror['name']}" if mirror else repository,
        commit=commit,
        patch=_text(record, "patch", where),
        test_patch="" if is_bug else _text(record, "test_patch", where, may_be_empty=True),
        statement=_text(record, "problem_statement", where),
        fail_to_pass=tests["FAIL_TO_PASS"],
        pass_to_pass=tests["PASS_TO_PASS"],
        created=record["created_at"] if isinstance(record.get("created_at"), str) else None,
        is_bug=is_bug,
        about={key: record[key] for key in kept if isinstance(record.get(key), str | int | float)},
        not_taken=tuple(f"{key}: {why}" for key, why in _NOT_TAKEN.items() if record.get(key)),
    )


def _text(record: Mapping[str, Any], name: str, where: str, may_be_empty: bool = False) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not (value.strip() or may_be_empty):
        raise ConfigError(f"{where}: {name}: must be text, and is {'missing' if value is None else repr(value)[:60]}")
    return value


def _tests(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    """A list, or one written as JSON, as the published sets have it."""
    value = record.get(name)
    if isinstance(value, str):
        try:
            value = parsed(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise ConfigError(f"{where}: {name}: must be a list of tests' names, or one written as JSON")
    return tuple(value)


def _patched(
    instance: Instance, name: str, files: Mapping[str, bytes], patch: str, most_bytes: int
) -> dict[str, bytes]:
    """All files, with a patch applied."""
    try:
        return apply_patch(files, patch, most_bytes)
    except ConfigError as error:
        raise ConfigError(f"{instance.id}: {name} {error}") from None

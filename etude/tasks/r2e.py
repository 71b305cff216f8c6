"""Rows of R2E-Gym, as they are published, read as `instance.Instance`.

Owns `r2e_instance`. A row names a repository without its owner, and the commit that mended it; the workspace is that of
the commit before. Its tests are files of its own, below r2e_tests, with the logs of a run before and one after; those
that passed after, and are expected to, are what is asked. The row's image is not used: what its tests need is installed
as for any other instance. Source: the data set's own description, and what its harness reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

from etude.errors import ConfigError
from etude.tasks.instance import Instance
from etude.tasks.json_lines import parsed
from etude.tasks.mined.history import is_inside

R2E_FIELDS = ("repo_name", "commit_hash", "execution_result_content")
"""What such a row has, and no other."""
_TESTS = "r2e_tests"
_PASSED = re.compile(rf"^PASSED (?P<file>{_TESTS}/[^:\s]+\.py)::(?P<name>.+?)(?: - .*)?$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def r2e_instance(row: Mapping[str, Any], where: str) -> Instance:
    """Raises ConfigError with the field that is wrong, or that holds what no task can."""
    repository, commit = _text(row, "repo_name", where), _text(row, "commit_hash", where)
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise ConfigError(f"{where}: commit_hash: {commit!r} is no commit's id")
    execution, expected = (_object(row, name, where) for name in ("execution_result_content", "expected_output_json"))
    names, codes = execution.get("test_file_names"), execution.get("test_file_codes")
    if not (isinstance(names, list) and isinstance(codes, list) and len(names) == len(codes) > 0):
        raise ConfigError(f"{where}: execution_result_content: must have test_file_names and as many test_file_codes")
    if strange := [name for name in names if not isinstance(name, str) or not is_inside(name)]:
        raise ConfigError(f"{where}: execution_result_content: {strange[0]!r} in test_file_names is no file's name")
    wanted = {_COLOUR.sub("", name).split(" - ")[0]: status for name, status in expected.items()}
    after = dict(_passed(execution, "new_commit_res_stdout"))
    before = set(dict(_passed(execution, "old_commit_res_stdout")))
    asked = {test: name for test, name in after.items() if wanted.get(name) == "PASSED"}
    left = sorted(wanted.keys() - set(asked.values()))
    return Instance(
        id=f"{repository}-{commit[:12]}",
        repository=repository,
        commit=f"{commit}~",
        patch="",
        test_patch="",
        statement=_text(row, "problem_statement", where),
        fail_to_pass=tuple(sorted(asked.keys() - before)),
        pass_to_pass=tuple(sorted(asked.keys() & before)),
        fixed=commit,
        tests={f"{_TESTS}/{name}": str(code).encode() for name, code in zip(names, codes, strict=True)},
        about={"image_name": row["docker_image"]} if isinstance(row.get("docker_image"), str) else {},
        not_taken=tuple(_not_taken(row, left)),
        refused=_refusal(asked.keys(), before),
    )


def _refusal(asked: Set[str], before: Set[str]) -> str:
    if not asked:
        return f"its log names no test as pytest does (PASSED {_TESTS}/FILE::NAME); no other runner is supported"
    return "" if asked - before else "every test passed before its solution too, so nothing would tell one"


def _not_taken(row: Mapping[str, Any], left: list[str]) -> Iterator[str]:
    if row.get("docker_image"):
        yield "docker_image: not used; what the tests need is installed as the repository asks for it"
    if row.get("prompt"):
        yield "prompt: not used; the agent reads problem_statement"
    if left:
        yield f"expected_output_json: {len(left)} tests are not asked, as they do not pass even when solved: {left[0]}"


def _passed(execution: Mapping[str, Any], log: str) -> Iterator[tuple[str, str]]:
    """Tests that a log says passed, by pytest's id and by the name that the row calls them."""
    for found in _PASSED.finditer(_COLOUR.sub("", str(execution.get(log) or ""))):
        yield f"{found['file']}::{found['name']}", found["name"].replace("::", ".")


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {name}: must be text, and is {'missing' if value is None else repr(value)[:60]}")
    return value.strip()


def _object(row: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """An object, or one written as JSON, as the published rows have it."""
    value = row.get(name)
    try:
        value = parsed(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {name}: must be an object, or one written as JSON")
    return value

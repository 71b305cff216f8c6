"""git for what reads and makes repositories of tasks, in a thread that may wait; a failure says what is wrong.

Owns `run_git`, which is `host.git` with errors, and `size_of`, of what it lists. Runs nothing else, and decides nothing
about how git is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etude.errors import ConfigError
from etude.host.git import GitContext, run_git_now

GIT_TIMEOUT_S = 120.0


def run_git(*words: str, at: GitContext, env: Mapping[str, str] | None = None, given: bytes = b"") -> bytes:
    """What git prints. Raises ConfigError with what it said where it fails, MissingDependency and DeadlineExceeded."""
    ran = run_git_now(*words, at=at, env=env, given=given, deadline_s=GIT_TIMEOUT_S)
    if ran.code:
        raise ConfigError(f"{at.directory}: git {words[0]} ended with {ran.code}: {ran.reason[-300:]}")
    return ran.output


def size_of(length: str, repository: Path) -> int:
    """A file's bytes, as `ls-tree -l` says them. Raises ConfigError where git has the file's name alone."""
    if not length.isdecimal():
        raise ConfigError(
            f"{repository}: files have no contents there, as in a clone that was made with --filter; clone it whole"
        )
    return int(length)

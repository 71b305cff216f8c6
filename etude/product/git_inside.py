"""Whether git works where commands of the agent run, and what it is given so that it does.

Owns `lack_of_git`, the reason why it does not: the workspace is a part of a repository, or the repository is another
user's and the user has not said that it is trusted. Owns `trusting`, which lets git in the sandbox trust /workspace
where the user's own git trusts the directory that it is. Decides nothing itself of whom to trust, and writes nobody's
config.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.errors import EtudeError
from etude.host import beneath
from etude.host.git import distrusts
from etude.host.repository import GitRepository, find
from etude.plain import plain_line

_COUNT = "GIT_CONFIG_COUNT"


@dataclass(frozen=True)
class LackOfGit:
    """Why git does not work in commands."""

    model: str
    """For the system prompt: no names, since they are anybody's."""
    person: str
    """What they can do about it."""


def lack_of_git(directory: Path, sandboxed: bool) -> LackOfGit | None:
    """None where it works, and where there is no repository."""
    found = _found(directory)
    if found is None or found.top is None:
        return None
    top = plain_line(str(found.top))
    if sandboxed and found.top != directory.resolve():
        return LackOfGit(
            "the workspace is a directory within a repository, so git in commands does not find it and commits nothing",
            f"git does not work in commands: the repository's top is {top}; start there for git",
        )
    if _of_another(found) and distrusts(found.top):
        return LackOfGit(
            "git in commands refuses the repository, which belongs to another user",
            f"git does not work in commands: {top} belongs to another user, and your git does not trust it; if you do, "
            f"git config --global --add safe.directory {plain_line(shlex.quote(str(found.top)))}, and start again",
        )
    return None


def trusting(env: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The environment of commands in the sandbox, which know the directory by another name than the user's config. An
    owner that the sandbox does not have looks the same to git whoever it is, so it must be told in every such case."""
    found, count = _found(directory), env.get(_COUNT, "0")
    if found is None or found.top != directory.resolve() or not _of_another(found):
        return dict(env)
    if not count.isdecimal() or distrusts(found.top):
        return dict(env)
    named = {f"GIT_CONFIG_KEY_{int(count)}": "safe.directory", f"GIT_CONFIG_VALUE_{int(count)}": WORKSPACE}
    return {**env, **named, _COUNT: str(int(count) + 1)}


def _found(directory: Path) -> GitRepository | None:
    try:
        return find(directory)
    except (EtudeError, OSError):
        return None


def _of_another(found: GitRepository) -> bool:
    """Whether anything that git looks at for it is not this user's."""
    top = found.top or found.git_dir
    seen = (top.stat(), beneath.lstat(top, ".git"), found.git_dir.stat())
    return any(each is not None and each.st_uid != os.geteuid() for each in seen)

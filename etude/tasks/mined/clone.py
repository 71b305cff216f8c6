"""A repository that is named by its address, as a bare clone below the cache: what `History` reads.

Owns `is_address` and `cloned`. Run again, it fetches. Everything of the history is fetched, and nothing is checked out.
git is run as everywhere here, without anybody's config, so a repository that wants a password is to be cloned by hand.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from etude.environments.build import default_cache_dir
from etude.errors import ConfigError
from etude.host.git import GitContext, run_git_now

CLONE_TIMEOUT_S = 1800.0
_ADDRESS = re.compile(r"(https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
_PROTOCOLS = {"GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file"}


def is_address(repository: str) -> bool:
    return _ADDRESS.fullmatch(repository) is not None


def cloned(address: str) -> Path:
    """A directory named as the repository is, `shop.git`. Raises ConfigError with what git said where it cannot be had,
    and DeadlineExceeded."""
    name = address.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git") or "repository"
    where = default_cache_dir() / "repositories" / hashlib.sha256(address.encode()).hexdigest()[:16]
    clone = where / f"{name}.git"
    if clone.is_dir():
        _git(address, "fetch", "--quiet", "--prune", address, "+refs/heads/*:refs/heads/*", at=GitContext(clone))
        return clone
    where.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cloning-", dir=where) as torn:
        _git(address, "clone", "--quiet", "--bare", "--", address, f"{torn}/{name}.git", at=GitContext(cwd=where))
        shutil.move(f"{torn}/{name}.git", clone)
    return clone


def _git(address: str, *words: str, at: GitContext) -> None:
    ran = run_git_now(*words, at=at, env=_PROTOCOLS, deadline_s=CLONE_TIMEOUT_S)
    if ran.code:
        raise ConfigError(f"{address} cannot be cloned: {ran.reason}; clone it yourself, and name the directory")

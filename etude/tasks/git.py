"""git, run to its end in a thread that may wait, for what reads and makes repositories of tasks.

Owns `run_git`. Which of git's options and variables keep a repository's config from being obeyed is the caller's to
say; variables that point git elsewhere are not passed on. `harness.git` is its like for an event loop.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from etude.errors import ConfigError, DeadlineExceeded, MissingDependency

GIT_TIMEOUT_S = 120.0


def run_git(
    root: Path, words: Sequence[str], options: Sequence[str], env: Mapping[str, str], given: bytes = b""
) -> bytes:
    """What `git OPTIONS WORDS` prints in `root`; `given` is its stdin. Raises ConfigError with what it said where it
    fails, MissingDependency and DeadlineExceeded.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *options, *words], cwd=root, env={**inherited, **env}, input=given, capture_output=True,
            timeout=GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise MissingDependency("git is not installed: apt-get install -y git (2.28 or later)") from None
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"git {words[0]} in {root}", GIT_TIMEOUT_S) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise ConfigError(f"{root}: git {words[0]} ended with {done.returncode}: {said}")
    return done.stdout

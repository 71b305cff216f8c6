"""Git as a test's own user runs it, whatever the machine's user has configured."""

from __future__ import annotations

import subprocess
from pathlib import Path

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")


def git(directory: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=directory, check=True, capture_output=True, text=True, timeout=60).stdout

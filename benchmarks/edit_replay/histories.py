"""Edits that people made, read from git histories, for `benchmarks/edits.py`.

A change is one file in one commit that is not a merge; each of its hunks is an edit: lines of the old file, and those
in their place. Where the commit before it that touched the file is known, so is what the file looked like earlier,
which is what an author with a stale view would have in mind. Only reads; needs no work tree.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = ("py", "js", "ts", "go", "rs", "c", "h", "java", "rb", "md", "toml", "yml", "yaml", "json", "html", "css")
_RAW = re.compile(r":\d+ \d+ ([0-9a-f]{40}) ([0-9a-f]{40}) M\t(.*)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    """Lines `start` to `end` of the old file, counted from 0, became lines `new_start` to `new_end` of the new one."""

    start: int
    end: int
    new_start: int
    new_end: int


@dataclass(frozen=True)
class Change:
    path: str
    old: str
    new: str
    hunks: tuple[Hunk, ...]
    before: Change | None
    """The change that made `old`, where the history is a straight line there."""


class History:
    """The changes of one repository, and its files' contents."""

    def __init__(self, git_dir: Path, commits: int) -> None:
        self._git = ["git", f"--git-dir={git_dir}"]
        self._commits = commits
        self._objects: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> History:
        command = [*self._git, "cat-file", "--batch"]
        self._objects = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._objects is not None and self._objects.stdin is not None and self._objects.stdout is not None
        self._objects.stdin.close()
        self._objects.stdout.close()
        self._objects.wait(timeout=30)

    def head(self) -> str:
        """The commit the history is read back from."""
        return self._run("rev-parse", "HEAD").strip()

    def lines(self, blob: str) -> list[str] | None:
        """A file's lines; None where it is no plain text with a newline at its end, or very long."""
        assert self._objects is not None and self._objects.stdin is not None and self._objects.stdout is not None
        self._objects.stdin.write(f"{blob}\n".encode())
        self._objects.stdin.flush()
        _, _, size = self._objects.stdout.readline().split()
        data = self._objects.stdout.read(int(size) + 1)[:-1]
        if len(data) > 200_000 or b"\r" in data or b"\0" in data or not data.endswith(b"\n"):
            return None
        try:
            return data.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            return None

    def changes(self) -> Iterator[Change]:
        """Oldest first."""
        options = ["--no-merges", "--no-renames", "--diff-filter=M", "--reverse", "--format=%x00", "--no-color"]
        limit = [f"--max-count={self._commits}"]
        text = self._run("log", *options, *limit, "--raw", "--no-abbrev", "-p", "-U0", "--", *_globs())
        last: dict[str, Change] = {}
        for commit in text.split("\0"):
            files = _RAW.findall(commit)
            patches = re.split(r"^diff --git .*$", commit, flags=re.MULTILINE)[1:]
            for (old, new, path), patch in zip(files, patches, strict=False):
                hunks = tuple(_hunk(*found) for found in _HUNK.findall(patch))
                before = last.get(path)
                change = Change(path, old, new, hunks, before if before is not None and before.new == old else None)
                last[path] = change
                yield change

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([*self._git, *arguments], capture_output=True, check=True, timeout=600)
        return done.stdout.decode(errors="replace")


def _globs() -> list[str]:
    return [f"*.{suffix}" for suffix in SUFFIXES]


def _hunk(old_at: str, old_count: str, new_at: str, new_count: str) -> Hunk:
    """git counts lines from 1, and names the line before where there is none."""
    old, new = int(old_count or 1), int(new_count or 1)
    start, new_start = int(old_at) - (old > 0), int(new_at) - (new > 0)
    return Hunk(start, start + old, new_start, new_start + new)

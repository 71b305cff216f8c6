"""Git as a test's own user runs it, whatever the machine's user has configured."""

from __future__ import annotations

import subprocess
from pathlib import Path

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")


def git(directory: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=directory, check=True, capture_output=True, text=True, timeout=60).stdout


def stored(root: Path, kind: str, data: bytes) -> bytes:
    """The name of an object that git has put in a repository without a look at it."""
    words = [*GIT, "hash-object", "-w", "--literally", "-t", kind, "--stdin"]
    done = subprocess.run(words, cwd=root, check=True, capture_output=True, input=data, timeout=60)
    return bytes.fromhex(done.stdout.decode())


def commit_leading_out(root: Path, path: str, content: bytes) -> str:
    """A commit of the files of HEAD and of one more, at a path such as `../x`. git writes none, and takes it from
    others."""
    *above, name = path.split("/")
    entry = b"100644 " + name.encode() + b"\0" + stored(root, "blob", content)
    for part in reversed(above):
        entry = b"40000 " + part.encode() + b"\0" + stored(root, "tree", entry)
    words = [*GIT, "cat-file", "tree", "HEAD^{tree}"]
    before = subprocess.run(words, cwd=root, check=True, capture_output=True, timeout=60).stdout
    return git(
        root, "commit-tree", "-p", "HEAD", "-m", "Mend the total", stored(root, "tree", entry + before).hex()
    ).strip()

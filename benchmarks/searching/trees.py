"""Large trees of real source: what the measurements of speed search in.

Owns `source_tree`: this Python's library and the packages beside it, copied and put under git. Nothing is downloaded; a
machine that has fewer files gives a smaller tree, and whoever measures says how large it was.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_SOURCES = (".py", ".pyi", ".h", ".hpp", ".c", ".cc", ".rst", ".md", ".js", ".ts", ".json", ".txt", ".toml", ".cfg")
_MOST_BYTES = 1_000_000
_AS_SOMEBODY = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def source_tree(at: Path, most: int) -> int:
    """So many files at most below a directory that is made, committed to git; how many there are."""
    at.mkdir(parents=True)
    count = 0
    for source, name in _files():
        if count == most:
            break
        target = at / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        count += 1
    git(at, "init", "-q")
    git(at, "add", "-A", "-f")
    git(at, "commit", "-qm", "the tree")
    return count


def git(at: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=at, check=True, timeout=600, env={**os.environ, **_AS_SOMEBODY})


def _files() -> Iterator[tuple[Path, str]]:
    """In an order that mixes packages, so that a smaller tree is a sample of a larger one; no content twice."""
    roots = {"lib": sysconfig.get_path("stdlib"), "site": sysconfig.get_path("purelib")}
    found = []
    for name, root in roots.items():
        for folder, _, names in os.walk(root):
            inside = os.path.relpath(folder, root)
            if name == "lib" and "site-packages" in inside:
                continue
            found += [(Path(folder, each), f"{name}/{inside}/{each}") for each in names if each.endswith(_SOURCES)]
    seen: set[bytes] = set()
    for path, name in sorted(found, key=lambda each: hashlib.sha256(each[1].encode()).digest()):
        if path.is_symlink() or not 0 < path.stat().st_size <= _MOST_BYTES:
            continue
        content = hashlib.sha256(path.read_bytes()).digest()
        if content not in seen:
            seen.add(content)
            yield path, name

"""Large trees of real source: what the measurements of speed search in.

Owns `source_tree`: this Python's library, the packages beside it and what more is named, copied and put under git.
Nothing is downloaded; a machine that has fewer files gives a smaller tree, and whoever measures says how large it was.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

_SOURCES = (".py", ".pyi", ".h", ".hpp", ".c", ".cc", ".rst", ".md", ".js", ".ts", ".json", ".txt", ".toml", ".cfg")
_MOST_BYTES = 1_000_000
_AS_SOMEBODY = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def source_tree(at: Path, most: int, also: Sequence[Path] = (), endings: tuple[str, ...] = _SOURCES) -> Path:
    """A directory below `at` with so many files at most, committed to git; the one of an earlier run is taken as it
    is. `also` names directories whose files join those of this Python."""
    root = at / "-".join(("tree", str(most), *(each.resolve().name for each in also)))
    if root.exists():
        return root
    root.mkdir(parents=True)
    for source, name in itertools.islice(_files(also, endings), most):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    git(root, "init", "-q")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-qm", "the tree")
    return root


def directory(named: str) -> Path:
    """One that an option names; argparse tells the error."""
    if not (path := Path(named)).is_dir():
        raise argparse.ArgumentTypeError(f"{named} is no directory; name one that exists")
    return path


def git(at: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=at, check=True, timeout=600, env={**os.environ, **_AS_SOMEBODY})


def _files(also: Sequence[Path], endings: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """In an order that mixes packages, so that a smaller tree is a sample of a larger one; no content twice."""
    roots = {"lib": sysconfig.get_path("stdlib"), "site": sysconfig.get_path("purelib")}
    roots |= {f"also-{number}": str(each) for number, each in enumerate(also)}
    found = []
    for name, root in roots.items():
        for folder, _, names in os.walk(root):
            inside = os.path.relpath(folder, root)
            if name == "lib" and "site-packages" in inside:
                continue
            found += [(Path(folder, each), f"{name}/{inside}/{each}") for each in names if each.endswith(endings)]
    seen: set[bytes] = set()
    for path, name in sorted(found, key=lambda each: hashlib.sha256(each[1].encode()).digest()):
        if path.is_symlink() or not 0 < path.stat().st_size <= _MOST_BYTES:
            continue
        content = hashlib.sha256(path.read_bytes()).digest()
        if content not in seen:
            seen.add(content)
            yield path, name

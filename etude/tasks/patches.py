"""Patches of strangers, applied to files that are in memory.

Owns `apply_patch`. git reads the patch and writes the files, in a directory that goes away; only those that the patch
names are put there. A patch of a few kilobytes can ask for gigabytes, as a packed literal or as copies of one file:
what it asks for is counted before git makes it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.tasks.git import run_git

_SOURCE = re.compile(r"^(?:rename|copy) from (.+)$", re.MULTILINE)
_BINARY = re.compile(r"^(literal|delta)\s+\+?(\d+)", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def apply_patch(files: Mapping[str, bytes], patch: str, most_bytes: int) -> dict[str, bytes]:
    """All files, with the patch applied. Raises ConfigError, whose words follow the patch's name, where it does not
    apply, makes a link, or makes more than `most_bytes` of all files.
    """
    data = (patch if patch.endswith("\n") else f"{patch}\n").encode()
    sources = [_unquoted(name) for name in _SOURCE.findall(patch)]
    _refuse_size(_packed(patch) + sum(len(files.get(name, b"")) for name in sources), most_bytes)
    with tempfile.TemporaryDirectory(prefix="etude-patch-") as scratch:
        root = Path(scratch)
        told = os.fsdecode(_git(root, data, "--numstat", "-z")).split("\0")
        named = {*sources, *(line.split("\t", 2)[-1] for line in told)}
        for path in named & files.keys():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(files[path])
        _git(root, data, "--whitespace=nowarn")
        made = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
        if links := sorted(name for name, path in made.items() if path.is_symlink()):
            raise ConfigError(f"makes {links[0]} a link; a task holds plain files")
        there = {name: path for name, path in made.items() if path.is_file()}
        left = {path: content for path, content in files.items() if path not in named}
        _refuse_size(sum(map(len, left.values())) + sum(path.stat().st_size for path in there.values()), most_bytes)
        return {**left, **{name: path.read_bytes() for name, path in there.items()}}


def _git(root: Path, patch: bytes, *words: str) -> bytes:
    try:
        return run_git("apply", *words, "-", at=GitContext(cwd=root), given=patch)
    except ConfigError as error:
        raise ConfigError(f"does not apply to its commit: {str(error).partition(': ')[2]}") from None


def _refuse_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise ConfigError(f"makes a workspace that is larger than {most_bytes >> 20} MB")


def _packed(patch: str) -> int:
    """How many bytes its binary files have, by its own word, which git holds it to."""
    if "\nGIT binary patch\n" not in patch:
        return 0
    found = _BINARY.findall(patch)
    if any(kind == "delta" for kind, _ in found):
        raise ConfigError("changes a binary file by a delta, whose size only git can tell; leave that file out of it")
    return sum(int(size) for _, size in found)


def _unquoted(name: str) -> str:
    """A path as git writes it in a patch: in quotes, with escapes for bytes, where it is not plain."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name
    return os.fsdecode(_ESCAPE.sub(_byte, os.fsencode(name[1:-1])))


def _byte(found: re.Match[bytes]) -> bytes:
    said = found[1]
    return bytes([int(said, 8) & 255]) if len(said) == 3 else _LETTERS.get(said, said)

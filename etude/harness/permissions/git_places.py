"""Whether git, asked from the workspace, would read a repository that lies elsewhere.

Owns `leads_out`. A `.git` file, a `commondir`, an alternate store of objects or a link among git's own files lead
wherever whoever wrote the workspace likes, and `git show` then prints what another repository holds. What is reached so
has to lie in the workspace or the worktree itself, or to be believed as the host believes it (`host.repository.find`):
it names this worktree in return, as that of `git worktree add` and that of a submodule do. Reads nothing but names,
links, the lists of alternates and the names of packs in an index of many.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from etude.host import beneath
from etude.host.repository import find

_MOST_SEEN = 200_000
"""Entries of one git directory."""
_MOST_BYTES, _MOST_STORES, _MOST_INDEX = 1 << 16, 20, 256 << 20
_HEAD, _CHUNK = struct.Struct(">4s4BI"), struct.Struct(">4sQ")
"""Of an index of many packs: its first bytes, with the numbers of chunks and of packs, and an entry of its table."""
_NOT_READ = {"hooks", "modules", "lfs", "annex"}
"""What git does not read for its own sake when it shows something, or reads as another repository's."""


def leads_out(git: Path, common: Path, tree: Path, within: Collection[Path]) -> Iterator[str]:
    """What of this worktree's repository lies neither in these places nor where it is believed, and why git reads it.
    `git` is its git directory, `common` the one that all its worktrees share."""
    known = [Path(os.path.realpath(place)) for place in (*within, tree)]
    if not (_lies_in(git, known) and _lies_in(common, known)):
        known += _believed(git, tree)
    for place in dict.fromkeys((git, common)):
        if not _lies_in(place, known):
            yield f"{place} is another repository, outside the workspace"
    for place in {common} if git.is_relative_to(common) else {git, common}:
        yield from _links(place, known)
    yield from _alternates(common / "objects", known)


def _lies_in(path: Path, known: Collection[Path]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(place) for place in known)


def _believed(git: Path, tree: Path) -> list[Path]:
    """A repository elsewhere that names this worktree in return."""
    try:
        found = find(tree)
    except OSError:
        return []
    if found is None or found.top != tree.resolve() or found.git_dir != Path(os.path.realpath(git)):
        return []
    return [found.git_dir, found.common]


def _links(git: Path, known: Collection[Path]) -> Iterator[str]:
    """The first link among a git directory's files that leads out."""
    waiting, left = [git], _MOST_SEEN
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_symlink() and not _lies_in(Path(entry.path), known):
                        yield f"{entry.path} leads out of the workspace"
                        return
                    if entry.is_dir(follow_symlinks=False) and not (here == git and entry.name in _NOT_READ):
                        waiting.append(Path(entry.path))
        except FileNotFoundError:  # another git has removed it
            continue
        except OSError as error:
            yield f"{here} cannot be looked at: {error.strerror}"
            return
        if left < 0:
            yield f"{git} holds too many files to look at whether one leads out of the workspace"
            return


def _alternates(objects: Path, known: Collection[Path]) -> Iterator[str]:
    """Stores of objects that git looks into as well, and those that these name."""
    waiting, seen = [objects], set[str]()
    while waiting:
        store = waiting.pop()
        if (real := os.path.realpath(store)) in seen:
            continue
        seen.add(real)
        yield from _names_of_packs(Path(real))
        lists = store / "info" / "alternates"
        try:
            text = beneath.read(Path(real), "info/alternates", _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield f"{lists} cannot be looked at: {error.strerror}"
            return
        for line in filter(None, text.split(b"\n")):
            # in quotes it is written in git's own way, and C ends a text where a zero stands
            plain = not line.startswith((b"#", b'"')) and b"\0" not in line
            if plain and _lies_in(store / os.fsdecode(line), known):
                waiting.append(store / os.fsdecode(line))
                yield from _links(store / os.fsdecode(line), known)
            elif not line.startswith(b"#"):
                yield f"{lists} names {os.fsdecode(line)!r}: objects of another repository, outside the workspace"
        if len(seen) > _MOST_STORES:
            yield f"{objects} names too many other stores of objects"
            return


def _names_of_packs(objects: Path) -> Iterator[str]:
    """An index of many packs that has one outside its directory: git opens what that says."""
    packs = objects / "pack"
    for file in (packs / "multi-pack-index", *sorted(packs.glob("multi-pack-index.d/*.midx"))):
        try:
            data = beneath.read(objects, str(file.relative_to(objects)), _MOST_INDEX)
            _, _, _, chunks, _, count = _HEAD.unpack_from(data)
            table = dict(_CHUNK.unpack_from(data, _HEAD.size + at * _CHUNK.size) for at in range(chunks))
            names = data[table[b"PNAM"] :].split(b"\0", count)[:count]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, struct.error, KeyError) as error:
            yield f"{file} cannot be looked at: {error}"
            return
        if any(b"/" in name for name in names):
            yield f"{file} names packs that lie elsewhere"
            return

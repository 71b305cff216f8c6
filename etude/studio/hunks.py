"""What an agent changed, hunk by hunk, and a commit that holds some of it.

Owns `changes_of`, the files and hunks between two commits of one repository, and `chosen_of`, which makes a commit of
exactly the hunks that a person took. What git keeps is read and written as bytes; nothing touches a working tree. A
hunk is known by the commit and its place, so that one which has changed meanwhile is not taken for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from etude.archive.records import FileChange
from etude.errors import ConfigError
from etude.harness.fleet import Repository
from etude.product.sessions.errors import Refused
from etude.studio.archive_shapes import Hunk
from etude.studio.diffs import hunk_of, is_binary

_RAW = ("-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
_MOST_FILES, _MOST_PAIRS = 10_000, 4_000_000
_SHOWN_BYTES = 512 << 10
_PAGE_BYTES = 1 << 20
"""Of the contents of a page of files, before and after."""
Blocks = list[tuple[int, int, int, int]]
Sides = tuple[bytes | None, bytes | None]


@dataclass(frozen=True)
class ChangedFile:
    """A file that an agent added, changed or removed. Where it has no hunks it is taken whole or not at all."""

    path: str
    status: str
    """A, M, D or T, as git calls it."""
    binary: bool
    hunks: list[Hunk]


@dataclass(frozen=True)
class Entry:
    """One path between two commits: modes and objects before and after."""

    path: bytes
    status: str
    modes: tuple[bytes, bytes]
    objects: tuple[str, str]


async def entries_of(repository: Repository, start: str, commit: str) -> list[Entry]:
    """The paths that differ. Raises ConfigError where there are too many to be looked at one by one."""
    raw = (await repository.git("diff-tree", *_RAW, start, commit)).split(b"\0")
    found = []
    for about, path in zip(raw[0::2], raw[1::2], strict=False):
        old_mode, new_mode, old, new, status = about.removeprefix(b":").split(b" ")
        found.append(Entry(path, status.decode(), (old_mode, new_mode), (old.decode(), new.decode())))
    if len(found) > _MOST_FILES:
        said = f"{len(found)} files changed, more than the {_MOST_FILES} that can be looked at one by one"
        raise ConfigError(f"{said}: end the team, and bring all of it: `etude agent --results`, then `--apply N`")
    return found


async def changes_of(repository: Repository, start: str, commit: str, first: int, most: int) -> list[ChangedFile]:
    """Files from the number `first` on, with their hunks: `most` of them, or fewer that are long; none after the
    last."""
    entries = (await entries_of(repository, start, commit))[first : first + most]
    contents = await _contents(repository, entries)
    some: list[tuple[Entry, Sides]] = []
    left = _PAGE_BYTES
    for entry in entries:
        sides = _sides(entry, contents)
        left -= sum(len(side or b"") for side in sides)
        if left < 0 and some:
            break
        some.append((entry, sides))
    return await asyncio.to_thread(lambda: [_changed(entry, *sides) for entry, sides in some])


def _changed(entry: Entry, before: bytes | None, after: bytes | None) -> ChangedFile:
    path = _name(entry)
    binary = is_binary(FileChange(path, before, after))
    return ChangedFile(path, entry.status, binary, [] if binary else _hunks(before, after))


async def _contents(repository: Repository, entries: Sequence[Entry]) -> dict[str, bytes]:
    """By their names, all objects that can be shown: two runs of git, however many these are."""
    names = list(dict.fromkeys(name for each in entries for name in _readable(each)))
    if not names:
        return {}
    sizes = (await repository.git("cat-file", "--batch-check=%(objectsize)", given=_listed(names))).split()
    short = [name for name, size in zip(names, sizes, strict=True) if int(size) <= _SHOWN_BYTES]
    said = await repository.git("cat-file", "--batch", given=_listed(short)) if short else b""
    found, at = dict[str, bytes](), 0
    for name in short:
        begins = said.index(b"\n", at) + 1
        at = begins + int(said[at:begins].split()[2])
        found[name] = said[begins:at]
        at += 1
    return found


def _listed(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()


def _readable(entry: Entry) -> list[str]:
    """The objects that are of a file, before and after."""
    sides = zip(entry.modes, entry.objects, strict=True)
    return [name for mode, name in sides if name.strip("0") and mode.startswith(b"10")]


def _sides(entry: Entry, contents: Mapping[str, bytes]) -> Sides:
    """The contents; of what is no file, or is too long to be shown, as if it were binary."""
    before, after = (contents.get(name, b"\0") if name.strip("0") else None for name in entry.objects)
    return before, after


def _lines(side: bytes | None) -> list[bytes]:
    """With their ends, so that joined they are the file."""
    lines = (side or b"").split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Blocks]:
    """Stretches that differ, those together whose surroundings meet: one hunk each."""
    if len(old) * len(new) > _MOST_PAIRS:
        return [[(0, len(old), 0, len(new))]]
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3)
    return [[(a, b, c, d) for tag, a, b, c, d in group if tag != "equal"] for group in groups]


def _hunks(before: bytes | None, after: bytes | None) -> list[Hunk]:
    old, new = _lines(before), _lines(after)
    shown = [[line.decode("utf-8", "replace").removesuffix("\n") for line in side] for side in (old, new)]
    return [hunk_of(shown[0], shown[1], blocks, 4000) for blocks in _blocks(old, new) if blocks]


async def chosen_of(
    repository: Repository,
    start: str,
    commit: str,
    chosen: Mapping[str, Sequence[int] | None],
    rest: bool,
    message: str,
) -> str:
    """A commit on `start` with only what was chosen: of each path all of it (None), or the hunks of these numbers. With
    `rest`, all of each path that is not named too. Raises Refused for a path or a hunk that is not there."""
    entries = {_name(each): each for each in await entries_of(repository, start, commit)}
    if unknown := [path for path in chosen if path not in entries]:
        raise Refused("invalid", f"files: {unknown[0][:200]!r} was not changed; ask for the changes again")
    others = dict.fromkeys(entries.keys() - chosen.keys()) if rest else {}
    lines = b""
    for path, numbers in {**others, **chosen}.items():
        if numbers is None or len(numbers):
            lines += await _staged(repository, entries[path], numbers)
    return await repository.commit_with(start, lines, message)


def _name(entry: Entry) -> str:
    return entry.path.decode("utf-8", "surrogateescape")


async def _staged(repository: Repository, entry: Entry, numbers: Sequence[int] | None) -> bytes:
    """A line for git's index."""
    mode, name = entry.modes[1], entry.objects[1]
    if numbers is not None:
        before, after = _sides(entry, await _contents(repository, [entry]))
        old, new = _lines(before), _lines(after)
        hunks = [] if is_binary(FileChange("", before, after)) else [each for each in _blocks(old, new) if each]
        if wrong := sorted(set(numbers) - set(range(len(hunks)))):
            raise Refused("invalid", f"files: {_name(entry)[:200]!r} has no hunk {wrong[0]}")
        if len(set(numbers)) < len(hunks):
            mixed = _mixed(old, new, hunks, set(numbers))
            name = (await repository.git("hash-object", "-w", "--stdin", given=mixed)).decode().strip()
            mode = entry.modes[0] if entry.modes[0].strip(b"0") else mode
    if not name.strip("0"):
        return b"0 " + b"0" * len(name) + b"\t" + entry.path + b"\0"
    return mode + b" " + name.encode() + b"\t" + entry.path + b"\0"


def _mixed(old: Sequence[bytes], new: Sequence[bytes], hunks: Sequence[Blocks], taken: set[int]) -> bytes:
    """The old lines, with the new ones where a hunk was taken."""
    made: list[bytes] = []
    at = 0
    for number, blocks in enumerate(hunks):
        for a, b, c, d in blocks:
            made += old[at:a]
            made += new[c:d] if number in taken else old[a:b]
            at = b
    return b"".join([*made, *old[at:]])

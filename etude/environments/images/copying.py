"""COPY and ADD: which files a step takes, what identifies them, and putting them into a tree.

Owns the rules for sources (wildcards, directories standing for their contents, `.dockerignore`) and for the destination
(a trailing slash, several sources, or an existing directory mean: into it). Sources are a build's context or another
stage; either way a symlink leads only inside them.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.environments.images.archives import extract, is_archive, open_archive
from etude.environments.images.confined import Confined, own, write_file
from etude.environments.images.ignore import Ignore, glob_pattern
from etude.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One file, directory or symlink a step takes: where it is, and its path below the destination ("" for itself)."""

    place: Path
    path: str
    info: os.stat_result


@dataclass(frozen=True)
class Source:
    """One source of a step, found. A directory stands for what is in it."""

    name: str
    entries: tuple[Entry, ...]
    is_directory: bool


@dataclass(frozen=True)
class CopyOptions:
    """Where sources go and as whose. `owner` None keeps the source's; `mode` None likewise."""

    destination: str
    owner: tuple[int, int] | None = (0, 0)
    mode: int | None = None
    unpack: bool = False


def find_sources(tree: Confined, patterns: Sequence[str], ignore: Ignore) -> list[Source]:
    """Raises ConfigError for a source that is not there."""
    found = []
    for pattern in patterns:
        matched = list(_matches(tree, pattern, ignore))
        if not matched:
            raise ConfigError(f"{pattern!r} is not in the build's files (or .dockerignore hides it)")
        found += [_source(tree, path, ignore) for path in matched]
    return found


def digest_sources(sources: Sequence[Source], owners: bool) -> str:
    """What identifies the files a step takes: names, kinds, modes, contents; owners where the step keeps them."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(repr((source.name, source.is_directory, len(source.entries))).encode())
        for entry in source.entries:
            info = entry.info
            size = info.st_size if stat.S_ISREG(info.st_mode) else 0
            owner = (info.st_uid, info.st_gid) if owners else ()
            digest.update(repr((entry.path, info.st_mode, owner, size)).encode())
            if stat.S_ISLNK(info.st_mode):
                digest.update(os.fsencode(os.readlink(entry.place)))
            elif stat.S_ISREG(info.st_mode):
                with entry.place.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def place_sources(sources: Sequence[Source], tree: Confined, placing: CopyOptions) -> None:
    """Write the sources into the tree."""
    many = len(sources) > 1
    into = placing.destination.endswith("/") or many or tree.resolve(placing.destination).is_dir()
    if many and not placing.destination.endswith("/"):
        raise ConfigError(f"several sources go into a directory: write {placing.destination}/")
    for source in sources:
        if source.is_directory:
            _place_directory(source, tree, placing)
        elif placing.unpack and is_archive(source.entries[0].place):
            with open_archive(source.entries[0].place) as plain:
                tree.directory(placing.destination, placing.owner or (0, 0))
                extract(plain, tree, at=placing.destination, owner=None if placing.owner == (0, 0) else placing.owner)
        else:
            target = f"{placing.destination.rstrip('/')}/{source.name}" if into else placing.destination
            _place(source.entries[0], tree, target, placing)


def place_texts(texts: Sequence[tuple[str, bytes]], tree: Confined, placing: CopyOptions) -> None:
    """Write here-documents into the tree."""
    for name, content in texts:
        into = placing.destination.endswith("/") or tree.resolve(placing.destination).is_dir()
        target = f"{placing.destination.rstrip('/')}/{name}" if into else placing.destination
        _make_parent(tree, target, placing)
        place = tree.vacate(_through(tree, target))
        write_file(place, io.BytesIO(content))
        own(place, *(placing.owner or (0, 0)), 0o644 if placing.mode is None else placing.mode)


def _matches(tree: Confined, pattern: str, ignore: Ignore) -> Iterator[str]:
    """Paths below the tree that a source names, wildcards part by part."""
    ahead = [part for part in pattern.split("/") if part not in ("", ".")]
    if ".." in ahead:
        raise ConfigError(f"{pattern!r}: a source lies inside the build's files; `..` leads out of them")
    found = [""]
    for part in ahead:
        if not set(part) & set("*?[\\"):
            found = [f"{path}/{part}".lstrip("/") for path in found]
            continue
        rule = glob_pattern(part)
        found = [
            f"{path}/{name}".lstrip("/")
            for path in found
            if (directory := tree.resolve(path)).is_dir()
            for name in sorted(os.listdir(directory))
            if rule.fullmatch(name)
        ]
    for path in found:
        place = tree.resolve(path)
        if os.path.lexists(place) and not (
            path and ignore.ignores(path) and not (ignore.takes_back and place.is_dir())
        ):
            yield path


def _source(tree: Confined, path: str, ignore: Ignore) -> Source:
    place = tree.resolve(path)
    info = place.lstat()
    _check_kind(place, info)
    if not stat.S_ISDIR(info.st_mode):
        return Source(path.rpartition("/")[2], (Entry(place, "", info),), False)
    inside = tree.inside(place).lstrip("/")
    return Source(path, tuple(_walk(place, inside, "", ignore)), True)


def _walk(directory: Path, seen_as: str, below: str, ignore: Ignore) -> Iterator[Entry]:
    """What a directory holds, parents first; `seen_as` is its path for .dockerignore."""
    for name in sorted(os.listdir(directory)):
        place, seen, path = directory / name, f"{seen_as}/{name}".lstrip("/"), f"{below}/{name}".lstrip("/")
        info = place.lstat()
        ignored = ignore.ignores(seen)
        if not ignored:
            _check_kind(place, info)
            yield Entry(place, path, info)
        if stat.S_ISDIR(info.st_mode) and (not ignored or ignore.takes_back):
            yield from _walk(place, seen, path, ignore)


def _check_kind(place: Path, info: os.stat_result) -> None:
    if not (stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
        raise ConfigError(f"{place.name!r} is a device, a socket or a FIFO, which cannot be copied")


def _place_directory(source: Source, tree: Confined, placing: CopyOptions) -> None:
    tree.directory(placing.destination, placing.owner or (0, 0))
    for entry in source.entries:
        _place(entry, tree, f"{placing.destination.rstrip('/')}/{entry.path}", placing)


def _place(entry: Entry, tree: Confined, target: str, placing: CopyOptions) -> None:
    owner = placing.owner or (entry.info.st_uid, entry.info.st_gid)
    mode = stat.S_IMODE(entry.info.st_mode) if placing.mode is None else placing.mode
    _make_parent(tree, target, placing)
    if stat.S_ISDIR(entry.info.st_mode):
        place = tree.resolve(target)
        if not place.is_dir():  # one that is there keeps its owner and mode
            place = tree.vacate(target, for_directory=True)
            place.mkdir()
            own(place, *owner, mode)
        return
    if stat.S_ISLNK(entry.info.st_mode):
        place = tree.vacate(target)
        place.symlink_to(os.readlink(entry.place))
        own(place, *owner, mode)
        return
    if tree.resolve(target).is_dir():
        raise ConfigError(f"{entry.path or entry.place.name}: cannot be copied over the directory {target}")
    place = tree.vacate(_through(tree, target))
    with entry.place.open("rb") as content:
        write_file(place, content)
    own(place, *owner, mode)


def _make_parent(tree: Confined, target: str, placing: CopyOptions) -> None:
    tree.directory(target.rstrip("/").rpartition("/")[0] or "/", placing.owner or (0, 0))


def _through(tree: Confined, target: str) -> str:
    """A file that is copied onto a symlink replaces what the link names, inside the tree."""
    return tree.inside(tree.resolve(target))

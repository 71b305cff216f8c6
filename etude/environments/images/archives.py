"""Unpacking tar archives that are not ours to trust into a tree: layers of OCI images, and what ADD finds.

Owns the extraction: every entry goes where its name leads inside the tree (see `confined`), so neither `..`, nor an
absolute name, nor a symlink made by an earlier entry reaches outside. Owners, modes, links, devices and FIFOs are kept;
times and extended attributes are not. In a layer, whiteouts remove what earlier layers put there.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from etude.environments.images.confined import Confined, own, write_file
from etude.environments.trees import remove_tree
from etude.errors import MissingDependency, SandboxError
from etude.extras import install_command

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_NODES = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@contextlib.contextmanager
def decompressed(file: BinaryIO) -> Generator[IO[bytes]]:
    """The bytes of a file, whichever of gzip, zstd and neither they are in."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(_GZIP):
        with gzip.GzipFile(fileobj=file) as plain:
            yield cast("IO[bytes]", plain)
    elif start.startswith(_ZSTD):
        try:
            import zstandard
        except ImportError:
            raise MissingDependency(f"zstd-compressed layers need a package: {install_command('train')}") from None
        try:
            with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as plain:
                yield cast("IO[bytes]", plain)
        except zstandard.ZstdError as error:
            raise SandboxError(f"not whole zstd: {error}") from None
    else:
        yield file


def extract(
    archive: IO[bytes], tree: Confined, *, at: str = "/", layer: bool = False, owner: tuple[int, int] | None = None
) -> None:
    """Unpack below `at`. `layer` obeys whiteouts; `owner` replaces the archive's own owners. Reads to the end."""
    written: set[Path] = set()
    try:
        with tarfile.open(fileobj=archive, mode="r|") as entries:
            for entry in entries:
                try:
                    _extract_entry(entries, entry, tree, at, layer, owner, written)
                except OSError as error:
                    raise SandboxError(f"cannot unpack {entry.name!r}: {error.strerror or error}") from None
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SandboxError(f"not a whole tar archive: {error}") from None
    while archive.read(1 << 20):  # what follows the last entry counts for the archive's digest
        pass


def is_archive(path: Path) -> bool:
    """Whether ADD unpacks this file: a tar, plain or compressed."""
    with contextlib.suppress(tarfile.TarError, EOFError, OSError), open_archive(path) as plain:
        return tarfile.open(fileobj=plain, mode="r|").next() is not None
    return False


@contextlib.contextmanager
def open_archive(path: Path) -> Generator[IO[bytes]]:
    """The plain tar of a file compressed by any of gzip, bzip2, xz and zstd."""
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        if start.startswith(b"BZh"):
            with bz2.BZ2File(file) as plain:
                yield cast("IO[bytes]", plain)
        elif start == b"\xfd7zXZ\0":
            with lzma.LZMAFile(file) as plain:
                yield cast("IO[bytes]", plain)
        else:
            with decompressed(cast("BinaryIO", file)) as plain:
                yield plain


def _extract_entry(
    entries: tarfile.TarFile,
    entry: tarfile.TarInfo,
    tree: Confined,
    at: str,
    layer: bool,
    owner: tuple[int, int] | None,
    written: set[Path],
) -> None:
    path = f"{at}/{entry.name}"
    name = entry.name.rstrip("/").rpartition("/")[2]
    if layer and entry.isreg() and name.startswith(_WHITEOUT):
        _white_out(tree, path, name, written)
        return
    place = tree.vacate(path, for_directory=entry.isdir())
    uid, gid = owner or (entry.uid, entry.gid)
    if entry.isdir():
        if not place.is_dir():
            place.mkdir()
        own(place, uid, gid, entry.mode)
    elif entry.isreg():
        content = entries.extractfile(entry)
        write_file(place, cast("Any", content or io.BytesIO()))
        own(place, uid, gid, entry.mode)
    elif entry.issym():
        place.symlink_to(entry.linkname)
        own(place, uid, gid, entry.mode)
    elif entry.islnk():
        _hard_link(tree, f"{at}/{entry.linkname}", place, entry)
    elif entry.type in _NODES:
        number = os.makedev(entry.devmajor, entry.devminor) if entry.type != tarfile.FIFOTYPE else 0
        if entry.type == tarfile.CHRTYPE and number == 0:
            raise SandboxError(f"{entry.name}: character device 0, 0 is overlayfs's own mark for a removed file")
        os.mknod(place, _NODES[entry.type] | 0o600, number)
        own(place, uid, gid, entry.mode)
    else:
        raise SandboxError(f"{entry.name}: an entry of the unknown type {entry.type!r}")
    if layer:
        written.update((place, *place.parents))


def _hard_link(tree: Confined, target: str, place: Path, entry: tarfile.TarInfo) -> None:
    source = tree.resolve(target, follow=False)
    if not source.is_symlink() and not source.is_file():
        raise SandboxError(f"{entry.name}: a hard link to {entry.linkname}, which is no file of this image")
    os.link(source, place, follow_symlinks=False)


def _white_out(tree: Confined, path: str, name: str, written: set[Path]) -> None:
    """Remove what lower layers put there. What this layer wrote stays, wherever in the archive the mark stands."""
    parent = tree.resolve(path.rstrip("/").rpartition("/")[0])
    if name == _OPAQUE:
        victims = list(parent.iterdir()) if parent.is_dir() else []
    else:
        victim = name.removeprefix(_WHITEOUT)
        if victim in ("", ".", ".."):
            raise SandboxError(f"{path}: a whiteout that names no file")
        victims = [parent / victim]
    for place in victims:
        _remove_lower(place, written)


def _remove_lower(place: Path, written: set[Path]) -> None:
    if place not in written:
        if place.is_dir() and not place.is_symlink():
            remove_tree(place)
        else:
            place.unlink(missing_ok=True)
    elif place.is_dir() and not place.is_symlink():
        for inner in list(place.iterdir()):
            _remove_lower(inner, written)

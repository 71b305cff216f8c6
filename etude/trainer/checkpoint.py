"""Trainer checkpoints on disk: whole or not there.

Owns the file format (torch.save with a BLAKE3 of the payload in front), atomic replacement, how many are kept, and
that one process writes them. A torn, corrupt or foreign file is an error that names it, never a silent start from
elsewhere.
"""

from __future__ import annotations

import errno
import io
import secrets
import shutil
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from blake3 import blake3

from etude.durable import write_whole
from etude.errors import CheckpointError
from etude.host.lock import wait_for

_MAGIC = b"ETUDECK1"
_DIGEST = 32
_PART_BYTES = 1 << 22
_SHARDS = ".shards-"
LAST_WORDS_S = 60.0
"""How long the trainer of a run that was just killed may take to finish what it writes."""


def claim(directory: Path, patience_s: float = LAST_WORDS_S) -> IO[str]:
    """Be the one writer of a run directory for as long as the returned file is open; the lock ends with the process.

    A run's controller can be killed while its trainer still writes: without this, the next life would start from one
    checkpoint and find another beside it. Raises CheckpointError when the other writer outlives `patience_s`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / "trainer.lock").open("w")
    if wait_for(file.fileno(), patience_s):
        return file
    file.close()
    raise CheckpointError(
        f"{directory}: another run has been writing here for {patience_s:.0f} s; stop it, or choose another --out"
    )


def shards_path(directory: Path, number: int) -> Path:
    """A directory for what several ranks write of that checkpoint, of a name that was never used."""
    return directory / f"step-{number:08d}{_SHARDS}{secrets.token_hex(4)}"


def save(directory: Path, number: int, state: dict[str, Any], keep: int = 2, shards: Path | None = None) -> Path:
    """Write `step-NUMBER.ckpt`, then remove all but the newest `keep`, and shards that none of them names: `shards` are
    this one's. A full disk leaves the older ones untouched. No more of the state is held twice than one tensor."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{number:08d}.ckpt"
    written = _Hashed()
    try:
        write_whole(path, lambda file: written.fill(file, state))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"{directory}: the disk is full, a checkpoint needs {written.size / 1e6:.0f} MB; "
                "the older ones are whole: "
                "make room and go on with --resume"
            ) from None
        raise
    for old in checkpoints(directory)[:-keep]:
        old.unlink()
    numbers = {each.stem for each in checkpoints(directory)}
    for other in directory.glob(f"step-*{_SHARDS}*"):
        begins = other.name.partition(_SHARDS)[0]
        if other != shards and (begins == path.stem or begins not in numbers):
            shutil.rmtree(other, ignore_errors=True)
    return path


class _Hashed:
    """A file that torch writes to, behind a hash of it all. torch's writer cannot be told that a write has failed: it
    goes on to what it would write last, and ends in an error of its own. So it is let write, for nothing, to the end.
    """

    def __init__(self) -> None:
        self.size, self._hash = 0, blake3()
        self._file: BinaryIO | None = None
        self._failed: OSError | None = None

    def fill(self, file: BinaryIO, state: dict[str, Any]) -> None:
        self._file = file
        file.write(_MAGIC + bytes(_DIGEST))
        torch.save(state, self)  # ty: ignore[invalid-argument-type]
        if self._failed is not None:
            raise self._failed
        file.seek(len(_MAGIC))
        file.write(self._hash.digest())

    def write(self, data: Any) -> int:
        part = memoryview(data).cast("B")
        self.size += len(part)
        if self._file is not None and self._failed is None:
            self._hash.update(part)
            try:
                self._file.write(part)
            except OSError as error:
                self._failed = error
        return len(part)

    def flush(self) -> None:
        """Whoever has opened the file does."""


class _Payload(io.RawIOBase):
    """What a checkpoint's file holds behind its header, as a file."""

    def __init__(self, file: BinaryIO, begins: int) -> None:
        self._file, self._begins = file, begins
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)  # ty: ignore[missing-attribute]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset + (self._begins if whence == io.SEEK_SET else 0), whence) - self._begins

    def tell(self) -> int:
        return self._file.tell() - self._begins


def load(path: Path) -> dict[str, Any]:
    """The state of one checkpoint. Raises CheckpointError for a file that is not exactly what was saved."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise CheckpointError(f"{path}: not an Etude checkpoint")
            digest, found = file.read(_DIGEST), blake3()
            while part := file.read(_PART_BYTES):
                found.update(part)
            if found.digest() != digest:
                raise CheckpointError(
                    f"{path}: torn or corrupt (its hash does not match); delete it and the one before it is used"
                )
            payload = _Payload(file, len(_MAGIC) + _DIGEST)
            return torch.load(payload, "cpu", weights_only=True)  # ty: ignore[invalid-argument-type]
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def checkpoints(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(directory.glob("step-*.ckpt"))


def load_latest(directory: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state; None if there is none. A corrupt newest one is an error, not a step back."""
    found = checkpoints(directory)
    return load(found[-1]) if found else None

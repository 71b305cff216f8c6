"""Trainer checkpoints on disk: whole or not there.

Owns the file format (torch.save with a BLAKE3 of the payload in front), atomic replacement, how many are kept, and
that one process writes them. A torn, corrupt or foreign file is an error that names it, never a silent start from
elsewhere.
"""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import IO, Any

import torch
from blake3 import blake3

from etude.durable import write_whole
from etude.errors import CheckpointError
from etude.host.lock import wait_for

_MAGIC = b"ETUDECK1"
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


def save(directory: Path, number: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write `step-NUMBER.ckpt`, then remove all but the newest `keep`. A full disk leaves the older ones untouched."""
    directory.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = directory / f"step-{number:08d}.ckpt"
    try:
        write_whole(path, _MAGIC + blake3(payload).digest() + payload)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"{directory}: the disk is full, a checkpoint needs {len(payload) / 1e6:.0f} MB; "
                "the older ones are whole: "
                "make room and go on with --resume"
            ) from None
        raise
    for old in checkpoints(directory)[:-keep]:
        old.unlink()
    return path


def load(path: Path) -> dict[str, Any]:
    """The state of one checkpoint. Raises CheckpointError for a file that is not exactly what was saved."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if data[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(f"{path}: not an Etude checkpoint")
    digest, payload = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if blake3(payload).digest() != digest:
        raise CheckpointError(
            f"{path}: torn or corrupt (its hash does not match); delete it and the one before it is used"
        )
    return torch.load(io.BytesIO(payload), weights_only=True)


def checkpoints(directory: Path) -> list[Path]:
    """Oldest first."""
    return sorted(directory.glob("step-*.ckpt"))


def load_latest(directory: Path) -> dict[str, Any] | None:
    """The newest checkpoint's state; None if there is none. A corrupt newest one is an error, not a step back."""
    found = checkpoints(directory)
    return load(found[-1]) if found else None

"""The files of a checkpoint that somebody else made, opened and read within bounds.

Owns every way in which a file of a checkpoint is found and read, and what is said of a path that is no checkpoint's. A
file is a regular one or it is not read, so that nothing waits for a pipe; it lies in the directory, or in the blobs of
Hugging Face's cache, to which the files of a snapshot there are links: any other link could have a stranger's
repository hand a user's own files on. Knows nothing of what the files mean, and never writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from etude.errors import CheckpointError
from etude.host import beneath
from etude.plain import in_a_sentence

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SMALL, LARGE = 16 << 20, 256 << 20
"""Bytes of most files, and of those that grow with a vocabulary or with the number of tensors."""
_AGAIN = "copy it anew from the model's source"
_POINTER_BYTES = 1024
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def fault_of(directory: Path) -> str | None:
    """What is wrong with a path that should be a checkpoint's directory, and what to do; None where it is one."""
    if os.path.isfile(directory / CONFIG):
        return None
    if os.path.isdir(directory):
        found = sorted(directory.glob("*.gguf"))
    elif os.path.lexists(directory):
        found = [directory]
    elif _HUB_NAME.fullmatch(str(directory)) and not os.path.isdir(directory.parent):
        return (
            f"there is no directory {directory}; if that is a name on Hugging Face, download it first (hf download "
            f"{directory} --local-dir {directory.name}), and give that directory"
        )
    else:
        return (
            f"there is no directory {directory}; give one that holds config.json and model.safetensors, as `etude "
            "models import` makes it of a download (docs/models.md#bring-a-model) and `etude pretrain` in OUT/model"
        )
    if found and found[0].suffix == ".gguf":
        return (
            f"{found[0]}: this file holds weights as llama.cpp quantises them; make a checkpoint of it first: "
            f"etude models import {found[0]} {found[0].stem} (docs/models.md#from-a-gguf)"
        )
    if found:
        return f"{directory}: this is no directory; give the one that holds config.json and model.safetensors"
    if os.path.lexists(directory / CONFIG):
        return f"{directory / CONFIG}: is no regular file; {_AGAIN}"
    if os.path.lexists(directory / "adapter_config.json"):
        return f"{directory}: an adapter without its model; merge both (peft's merge_and_unload), and give the result"
    return f"{directory}: no config.json there; a model directory holds it and model.safetensors"


def is_file(path: Path) -> bool:
    """Whether a path that a user names is a regular file, itself or by a link of the user's."""
    return os.path.isfile(path)


def located(directory: Path, name: str) -> Path | None:
    """Where a file of a checkpoint is, which is a regular one; None where there is nothing of that name."""
    path = directory / name
    if not os.path.lexists(path):
        return None
    with _readable(path):
        real, home = (Path(os.path.realpath(each, strict=True)) for each in (path, directory))
        if not real.is_relative_to(home) and not _is_blob(real):
            raise CheckpointError(f"{path}: leads out of the directory, to {real}; put the file itself there")
        if not real.is_file():
            raise CheckpointError(f"{path}: is no regular file; {_AGAIN}")
    return real


def read(directory: Path, name: str, most_bytes: int = SMALL) -> bytes | None:
    """A file of a checkpoint; None where there is none of that name. Raises CheckpointError, as all here."""
    real = located(directory, name)
    if real is None:
        return None
    with _readable(directory / name):
        return beneath.read(real.parent, real.name, most_bytes)


def is_pointer(path: Path) -> bool:
    """Whether a file only names one that Git LFS keeps elsewhere."""
    if not is_file(path) or path.stat().st_size > _POINTER_BYTES:
        return False
    return (read(path.parent, path.name) or b"").startswith(b"version https://git-lfs")


def read_text(directory: Path, name: str) -> str | None:
    data = read(directory, name)
    with _readable(directory / name):
        return None if data is None else data.decode()


def read_table(directory: Path, name: str, most_bytes: int = SMALL) -> dict[str, Any]:
    """The table of a JSON file; empty where there is no such file. All in it can be written as JSON again."""
    data, path = read(directory, name, most_bytes), directory / name
    if data is None:
        return {}
    try:
        said = json.loads(data.decode())
        # what Python reads and JSON has not: numbers that are none, halves of characters
        json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable JSON ({error}); {_AGAIN}") from None
    if not isinstance(said, dict):
        raise CheckpointError(f"{path}: should hold a table, not a {type(said).__name__}; {_AGAIN}")
    return said


def hashes_of(directory: Path, weights: bool = True) -> dict[str, str]:
    """A digest of each file that decides what a checkpoint says: what tells one from another in whatever is made by
    it."""
    found = {}
    with _readable(directory):
        names = sorted(os.listdir(directory))
    for name in names:
        if name.endswith((".json", ".jinja")) or (weights and name.endswith(".safetensors")):
            with _readable(directory / name):
                if (real := located(directory, name)) is not None:
                    with real.open("rb") as file:
                        found[name] = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return found


def few(names: Iterable[str], most: int = 3) -> str:
    """The first of many names, and how many there are more."""
    rest = iter(names)
    said = ", ".join(in_a_sentence(name[:200]) for name in islice(rest, most))
    more = sum(1 for _ in rest)
    return f"{said} and {more} more" if more else said


def _is_blob(real: Path) -> bool:
    return real.parent.name == "blobs" and real.parent.parent.name.startswith("models--")


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}; {_AGAIN}") from None

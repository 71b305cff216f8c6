"""What a directory of shards says of itself, read so that it can do nothing but say it.

Owns the way from a checkpoint's file to tensors of its shards. torch.distributed.checkpoint keeps the description of a
directory as a pickle, which runs whatever it names, and takes an entry that is no tensor for a pickle too. A checkpoint
may be somebody else's. So only what such a description is made of is looked up, all entries must be tensors, and every
file must be in this directory, with a hash in the checkpoint's file.
"""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, Metadata, filesystem, metadata
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata

from etude.errors import CheckpointError

DESCRIPTION = ".metadata"
_DTYPES = {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}
_KNOWN = {
    ("torch.distributed.checkpoint.metadata", name): getattr(metadata, name)
    for name in (
        "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
} | {("torch", name): each for name, each in _DTYPES.items()}  # fmt: skip
"""All that a description names; a path of it opens nothing here."""


class Shards(FileSystemReader):
    """As torch's reader, of a directory that a checkpoint's file names with the hashes of what is in it."""

    def __init__(self, directory: Path, shards: Mapping[str, Any]) -> None:
        """Raises CheckpointError where a name leads elsewhere."""
        for name in (shards["name"], *shards["hashes"]):
            if name in ("", "..") or Path(name).name != name:
                raise CheckpointError(f"{directory}: names {name!r}, which is not in it: no run of ours has saved that")
        self.directory, self.hashes = directory / shards["name"], shards["hashes"]
        super().__init__(self.directory)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Raises CheckpointError for a description that no save of ours has written."""
        path = self.directory / DESCRIPTION
        try:
            with path.open("rb") as file:
                found = _Unpickler(file).load()
            strange = self._strange(found)
        except Exception as error:  # whatever a pickle of any bytes may raise
            strange = f"it cannot be read ({error})"
        if strange:
            raise CheckpointError(f"{path}: was not written by a save of ours: {strange}; {self.without()}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found

    def without(self) -> str:
        """What to do where these shards are of no use."""
        step = self.directory.name.partition(".")[0]
        before = sorted(each.stem for each in self.directory.parent.glob("step-*.ckpt") if each.stem < step)
        then = f"step {int(before[-1].removeprefix('step-'))} is gone on with" if before else "the run begins anew"
        return f"remove {self.directory.parent / step}.ckpt, and {then}"

    def tensors(self) -> dict[str, TensorStorageMetadata]:
        """What is there, by name."""
        found = self.read_metadata().state_dict_metadata
        return {name: each for name, each in found.items() if isinstance(each, TensorStorageMetadata)}

    def _strange(self, found: Metadata) -> str:
        """What is wrong with it, "" if nothing is."""
        files = {DESCRIPTION, *(each.relative_path for each in found.storage_data.values())}
        if unhashed := sorted(files - self.hashes.keys()):
            return f"the checkpoint's file has no hash of {unhashed[0]!r}"
        others = [key for key, each in found.state_dict_metadata.items() if type(each) is not TensorStorageMetadata]
        return f"{others[0]} is no tensor" if others else ""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None

"""The manifest of a version: what its tensors hash to, and which chunks of which packs turn the parent into it.

Owns the records `Delta`, `Tensor` and `Chunk`, their encoding (JSON in one zstd frame with a checksum), and the root
hash. A manifest that parses is consistent in itself: both its roots are those of its own tensor table, and its chunks
cover every tensor and every pack without a gap. Whether packs and parent fit it is checked where they are read
(`chain`, `delta`). Never touches files or the network.

The root is BLAKE3 over, for every tensor in the order of its name: name, 0, dtype, 0, shape as decimals joined by
commas, 0, and the 32 bytes of BLAKE3 of its bits (little endian, row-major).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal

import blake3
import numpy as np
import zstandard
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from etude.errors import WeightError
from etude.weights.forms import FORMS, Array, FormName, form_of, to_wire

Bits = dict[str, Array]
"""Parameter name → array of any shape, of a dtype that says what its elements' bits are (`forms`)."""

FORMAT = "etude-weights/4"
MOST_MANIFEST_BYTES = 256 << 20
_SMALL_BYTES = 1 << 20
"""Up to this, the best compression takes no time to speak of."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ShortHash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
ChainId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""128 random bits, drawn for a chain's first version and carried by all that follow."""
Name = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]+$")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Chunk(_Record):
    """Elements [start, stop) of a flattened tensor, and where in the pack their payload lies."""

    codec: str
    """For reports; the payload's first byte decides."""
    start: Count
    stop: Count
    changed: Count
    offset: Count
    size: Count
    hash: ShortHash
    """The first half of the payload's BLAKE3: it tells damage apart; what was served is decided by the tensor's."""


class Tensor(_Record):
    """One tensor of a version: what it becomes, and the chunks that make it so."""

    name: Name
    dtype: FormName
    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    hash: Hash
    """BLAKE3 of the *resulting* bits."""
    parent_hash: Hash | None
    """BLAKE3 of the bits that the chunks start from; None with no parent."""
    pack: Count = 0
    """Which of the packs holds the chunks, all of them."""
    chunks: tuple[Chunk, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def raw_bytes(self) -> int:
        return self.elements * FORMS[self.dtype].dtype.itemsize

    @property
    def span(self) -> tuple[int, int]:
        """Which bytes of the pack are this tensor's."""
        return (self.chunks[0].offset, self.chunks[-1].offset + self.chunks[-1].size) if self.chunks else (0, 0)


class Pack(_Record):
    """Payloads, end to end, as one object named by its BLAKE3: those of one writer."""

    hash: Hash
    size: Count


class Delta(_Record):
    """How version `parent` becomes version `version`; with no parent, how zeros do: a full copy, an anchor."""

    format: Literal["etude-weights/4"] = FORMAT
    chain: ChainId
    version: Count
    parent: Count | None
    parent_root: Hash | None
    root: Hash
    time: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """When it was written, in seconds of Unix time by the writer's clock: for reports."""
    packs: Annotated[tuple[Pack, ...], Field(min_length=1)]
    tensors: Annotated[tuple[Tensor, ...], Field(min_length=1)]

    @property
    def raw_bytes(self) -> int:
        return sum(tensor.raw_bytes for tensor in self.tensors)

    @property
    def payload_bytes(self) -> int:
        return sum(chunk.size for tensor in self.tensors for chunk in tensor.chunks)

    @property
    def changed(self) -> int:
        return sum(chunk.changed for tensor in self.tensors for chunk in tensor.chunks)

    @property
    def changed_share(self) -> float:
        elements = sum(tensor.elements for tensor in self.tensors)
        return self.changed / elements if elements else 0.0

    def part(self, names: Collection[str]) -> Delta:
        """The same delta for some of the tensors: its roots are theirs, and its chunks leave gaps in the packs.

        Raises WeightError for a name that is not there, and for none.
        """
        tensors = tuple(tensor for tensor in self.tensors if tensor.name in names)
        missing = set(names) - {tensor.name for tensor in tensors}
        if missing or not tensors:
            raise WeightError(f"version {self.version} has no tensors {sorted(missing)[:3]}: is it of this model?")
        roots = {"root": _root(tensors), "parent_root": None if self.parent is None else _parent_root(tensors)}
        return self.model_copy(update={"tensors": tensors, **roots})

    @model_validator(mode="after")
    def _consistent(self) -> Delta:
        hashed = [tensor.parent_hash is not None for tensor in self.tensors]
        if not (self.parent is None) == (self.parent_root is None) == (not any(hashed)) == (not all(hashed)):
            raise ValueError("parent, parent_root and every tensor's parent_hash must be given together")
        if self.parent is not None and self.parent >= self.version:
            raise ValueError(f"version {self.version} cannot have the parent {self.parent}")
        if any(a.name >= b.name for a, b in itertools.pairwise(self.tensors)):
            raise ValueError("tensors are not in the order of their names")
        if self.root != _root(self.tensors):
            raise ValueError("the root is not that of the tensor table")
        if self.parent is not None and self.parent_root != _parent_root(self.tensors):
            raise ValueError("the parent root is not that of the tensor table")
        filled = [0] * len(self.packs)
        for tensor in self.tensors:
            if tensor.pack >= len(filled):
                raise ValueError(f"{tensor.name}: in pack {tensor.pack} of {len(filled)}")
            filled[tensor.pack] = _cover(tensor, filled[tensor.pack])
        if filled != [pack.size for pack in self.packs]:
            raise ValueError(f"chunks fill {filled} bytes of packs of {[pack.size for pack in self.packs]}")
        return self


def _root(tensors: Iterable[Tensor]) -> str:
    return root_of_hashes((tensor.name, tensor.dtype, tensor.shape, tensor.hash) for tensor in tensors)


def _parent_root(tensors: Iterable[Tensor]) -> str:
    return root_of_hashes((tensor.name, tensor.dtype, tensor.shape, tensor.parent_hash or "") for tensor in tensors)


def _cover(tensor: Tensor, offset: int) -> int:
    """Check that the chunks follow each other in the tensor, and in the pack from `offset` on; returns the next one."""
    element = 0
    for chunk in tensor.chunks:
        if chunk.start != element or chunk.stop <= element or chunk.offset != offset or chunk.size == 0:
            raise ValueError(f"{tensor.name}: chunk {chunk.start}:{chunk.stop} does not follow the one before")
        if chunk.changed > chunk.stop - chunk.start:
            raise ValueError(f"{tensor.name}: chunk {chunk.start}:{chunk.stop} claims {chunk.changed} changes")
        element, offset = chunk.stop, offset + chunk.size
    if element != tensor.elements:
        raise ValueError(f"{tensor.name}: chunks end at {element} of {tensor.elements} elements")
    return offset


def dump(delta: Delta) -> bytes:
    """The bytes of a manifest."""
    text = delta.model_dump_json().encode()
    level = 19 if len(text) < _SMALL_BYTES else 3
    return zstandard.ZstdCompressor(level=level, write_checksum=True).compress(text)


def load(data: bytes | memoryview, origin: str) -> Delta:
    """Parse a manifest; WeightError, naming `origin`, unless it is whole and consistent."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= MOST_MANIFEST_BYTES:
            raise WeightError(f"{origin}: not a zstd frame of known size up to {MOST_MANIFEST_BYTES} bytes")
        text = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        return Delta.model_validate_json(text)
    except zstandard.ZstdError as error:
        raise WeightError(f"{origin}: damaged or cut off: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WeightError(f"{origin}: not a manifest of {FORMAT}: {where}: {first['msg']}") from None


def hash_of(data: bytes | bytearray | memoryview | Array) -> str:
    """BLAKE3 of bytes, or of an array's bits in little endian and row-major order."""
    if isinstance(data, np.ndarray):
        data = to_wire(data).reshape(-1).view(np.uint8).data
    return blake3.blake3(data).hexdigest()


def short_hash_of(data: bytes | memoryview) -> str:
    """What a chunk's payload goes by."""
    return hash_of(data)[:32]


def root_of(bits: Mapping[str, Array]) -> str:
    """The root hash of a whole set of weights, as every manifest of that version states it."""
    table = ((name, form_of(bits[name], name).name, bits[name].shape, hash_of(bits[name])) for name in sorted(bits))
    return root_of_hashes(table)


def root_of_hashes(table: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """The root of (name, dtype, shape, hash of the bits) in the order of the names."""
    state = blake3.blake3()
    for name, dtype, shape, bits_hash in table:
        header = "\0".join((name, dtype, ",".join(map(str, shape)), ""))
        state.update(header.encode())
        state.update(bytes.fromhex(bits_hash))
    return state.hexdigest()

"""From two sets of weights to a delta, and back.

Owns chunking: each tensor is cut into chunks that are encoded apart (`codecs`), and their payloads lie end to end in
packs. `apply_delta` writes into arrays that its caller can afford to lose, and ends only when every resulting
tensor has the hash its manifest states. Never touches files or the network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from etude.errors import WeightError
from etude.records import Version
from etude.weights import codecs
from etude.weights.forms import FORMS, Array, form_of
from etude.weights.manifest import Bits, Chunk, Delta, Pack, Tensor, hash_of, root_of_hashes, short_hash_of

T = TypeVar("T")
R = TypeVar("R")
_Job = tuple[str, Array, int, int]
LEAST_PACK = 4 << 20
"""Bytes of a pack that is not the last: a store takes longer for many small objects."""
LARGE_COPY = 64 << 20
"""A full copy of more bytes of weights is made the fastest way: a run begins with one, and all its engines wait."""


@dataclass(frozen=True)
class Held:
    """A version in memory: verified bits and their root."""

    version: Version
    root: str
    bits: Bits
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Tensor → hash of its bits, as far as known: what is known need not be computed again."""


def check_bits(bits: Mapping[str, Array]) -> None:
    """Raises WeightError unless these are weights that a version can hold."""
    if not bits:
        raise WeightError("no tensors: a version needs at least one")
    for name, array in bits.items():
        form_of(array, name)


def copy_bits(bits: Mapping[str, Array]) -> Bits:
    """A copy whose arrays are contiguous and native, as the codecs need them."""
    return {name: np.array(array, array.dtype.newbyteorder("="), order="C") for name, array in bits.items()}


def contiguous_bits(bits: Mapping[str, Array]) -> Bits:
    """These if their arrays are contiguous and native, as the codecs need them; else copies."""
    fit = all(array.flags.c_contiguous and array.dtype.isnative for array in bits.values())
    return bits if fit and isinstance(bits, dict) else copy_bits(bits)


def make_delta(
    chain: str,
    version: Version,
    bits: Bits,
    parent: Held | None,
    chunk_elements: int,
    policy: codecs.Policy = "small",
    threads: int = 1,
    told: Callable[[int], object] = lambda done: None,
    *,
    put: Callable[[Pack, bytearray], object],
) -> Delta:
    """The manifest, for a version of this chain, of what turns `parent` (None: zeros) into contiguous `bits`; `put` is
    given its packs. A pack ends with the tensor that makes it a quarter as large as the largest, so that the payloads
    in memory are little more than that one's, however large the model is.

    `threads` chunks are encoded at a time; what is made does not depend on it. `told` hears after each chunk how many
    bytes of the weights are encoded by now. Raises WeightError if the tensors'
    names, forms or shapes are not the parent's.
    """
    if parent is not None:
        layout = {name: (form_of(array).name, array.shape) for name, array in parent.bits.items()}
        _check_layout(bits, layout, f"version {parent.version}")
    fast = policy == "fast" or sum(array.nbytes for array in bits.values()) > LARGE_COPY
    codes = _in_threads(threads, _encoder(bits, parent, policy, fast), _jobs(bits, chunk_elements))
    enough = max(LEAST_PACK, max(array.nbytes for array in bits.values()) // 4)
    packs: list[Pack] = []
    payloads = bytearray()
    tensors, done = [], 0
    for name in sorted(bits):
        if len(payloads) >= enough:
            packs.append(_ended(payloads, put))
            payloads = bytearray()
        new = bits[name].reshape(-1)
        chunks = []
        for start in range(0, new.size, chunk_elements):
            stop = min(start + chunk_elements, new.size)
            encoded = next(codes)
            place = {"start": start, "stop": stop, "changed": encoded.changed}
            place |= {"offset": len(payloads), "size": len(encoded.payload)}
            chunks.append(Chunk(codec=encoded.codec.name.lower(), hash=short_hash_of(encoded.payload), **place))
            payloads += encoded.payload
            done += (stop - start) * new.itemsize
            told(done)
        before = None if parent is None else parent.hashes.get(name) or hash_of(parent.bits[name])
        after = before if before is not None and _unchanged(name, bits, parent) else hash_of(new)
        table = {"dtype": form_of(new, name).name, "shape": bits[name].shape, "chunks": tuple(chunks)}
        tensors.append(Tensor(name=name, hash=after, parent_hash=before, pack=len(packs), **table))
    packs.append(_ended(payloads, put))
    return Delta(
        chain=chain,
        version=version,
        parent=parent.version if parent else None,
        parent_root=parent.root if parent else None,
        root=root_of_hashes((t.name, t.dtype, t.shape, t.hash) for t in tensors),
        time=time.time(),
        packs=tuple(packs),
        tensors=tuple(tensors),
    )


def _ended(payloads: bytearray, put: Callable[[Pack, bytearray], object]) -> Pack:
    pack = Pack(hash=hash_of(payloads), size=len(payloads))
    put(pack, payloads)
    return pack


def memory_bytes() -> int:
    """The machine's memory, which a whole model must fit into: a larger one is a forged manifest, or too large here."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def zeros_for(delta: Delta, most_bytes: int) -> Bits:
    """What a full copy is applied to. Raises WeightError before allocating more than `most_bytes`."""
    if delta.raw_bytes > most_bytes:
        raise WeightError(
            f"version {delta.version} claims {delta.raw_bytes} bytes of weights and a machine like this holds "
            f"{most_bytes}: read it on one with more memory, or with subscriber.slices"
        )
    try:
        return {tensor.name: np.zeros(tensor.shape, FORMS[tensor.dtype].dtype) for tensor in delta.tensors}
    except (ValueError, MemoryError) as error:
        raise WeightError(f"version {delta.version} does not fit this machine: {error}") from None


def apply_delta(delta: Delta, payloads: Mapping[str, memoryview], shadow: Bits, threads: int = 1) -> None:
    """Turn `shadow` from the parent's bits (zeros for a full copy) into those of `delta.version`, in place.

    `threads` tensors are decoded at a time. `payloads` holds each tensor's, end to end. `shadow` holds contiguous
    arrays. Raises WeightError, with `shadow` then garbage, if the layout differs, a payload is damaged, or a resulting
    tensor does not have its hash: the base was not the parent.
    """
    layout = {tensor.name: (tensor.dtype, tensor.shape) for tensor in delta.tensors}
    _check_layout(shadow, layout, f"the manifest of version {delta.version}")

    def apply(tensor: Tensor) -> None:
        _apply_tensor(delta, tensor, payloads[tensor.name], shadow[tensor.name].reshape(-1))

    for _ in _in_threads(threads, apply, delta.tensors):
        pass


def _apply_tensor(delta: Delta, tensor: Tensor, payloads: memoryview, flat: Array) -> None:
    for chunk in tensor.chunks:
        begins = chunk.offset - tensor.span[0]
        payload = payloads[begins : begins + chunk.size]
        try:
            codecs.apply(payload, flat[chunk.start : chunk.stop])
        except WeightError as error:
            where = f"version {delta.version}, {tensor.name}, elements {chunk.start}:{chunk.stop}"
            raise WeightError(f"{where}: {error}; nothing of it was served") from None
    if hash_of(flat) != tensor.hash:
        base = "zeros" if delta.parent is None else f"version {delta.parent}"
        raise WeightError(
            f"version {delta.version}, {tensor.name}: the result does not have the published hash, so it was not "
            f"applied to {base} or the delta is wrong; nothing of it was served: fetch again without a base"
        )


def _encoder(
    bits: Bits, parent: Held | None, policy: codecs.Policy, fast_copy: bool
) -> Callable[[_Job], codecs.Encoded]:
    def encode(job: _Job) -> codecs.Encoded:
        name, new, start, stop = job
        if parent is None:
            return codecs.encode_copy(new, fast_copy)
        if _unchanged(name, bits, parent):
            return codecs.UNCHANGED
        return codecs.encode(new, parent.bits[name].reshape(-1)[start:stop], policy)

    return encode


def _unchanged(name: str, bits: Bits, parent: Held | None) -> bool:
    """Whether a tensor is its parent's very array, which nobody has written to: a frozen one is not looked at again."""
    return parent is not None and parent.bits.get(name) is bits[name]


def _jobs(bits: Bits, chunk_elements: int) -> Iterator[_Job]:
    """Every chunk, in the order of the pack."""
    for name in sorted(bits):
        flat = bits[name].reshape(-1)
        for start in range(0, flat.size, chunk_elements):
            stop = min(start + chunk_elements, flat.size)
            yield name, flat[start:stop], start, stop


def _in_threads(threads: int, function: Callable[[T], R], jobs: Iterable[T]) -> Iterator[R]:
    """Results in the order of the jobs. The codecs leave the interpreter to others while they work."""
    if threads == 1:
        yield from map(function, jobs)
        return
    with ThreadPoolExecutor(threads, "weight-codecs") as pool:
        yield from pool.map(function, jobs)


def _check_layout(bits: Bits, expected: Mapping[str, tuple[str, tuple[int, ...]]], whose: str) -> None:
    if bits.keys() != expected.keys():
        raise WeightError(f"tensors differ from those of {whose}: {sorted(bits.keys() ^ expected.keys())}")
    for name, (form, shape) in expected.items():
        if bits[name].shape != tuple(shape):
            raise WeightError(f"{name}: shape {bits[name].shape} differs from {tuple(shape)} of {whose}")
        if (own := form_of(bits[name], name).name) != form:
            raise WeightError(f"{name}: {own} differs from {form} of {whose}; publish another form to another store")

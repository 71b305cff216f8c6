"""Expert routes as other engines send them, in every encoding there is, made one.

Owns `decode_routes`: npy in base64 (vLLM), int32 in base64 without a shape (SGLang), a table of base64 and shape
(prime-rl, Dynamo), and nested lists (vLLM before 0.22). What does not fit the model is refused with the reason: a route
replayed at the wrong token or layer would train the wrong expert silently.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude.errors import EtudeError
from etude.records import Routes

_NPY = b"\x93NUMPY"


class BadRoutes(EtudeError):
    """A server sent routes that cannot be those of the request and the model."""


@dataclass(frozen=True)
class RouteShape:
    """What the routes of a model look like: all its layers, those with a router, experts, and experts of a token."""

    layers: int
    moe_layers: tuple[int, ...]
    experts: int
    experts_per_token: int


def decode_routes(value: Any, shape: RouteShape, positions: int) -> Routes:
    """Routes [positions, layers with a router, K] in the smallest integer that holds an expert's number.

    A row too many, of the last token, is cut off. Raises BadRoutes.
    """
    array = _layered(_array(value), shape)
    if array.shape[0] not in (positions, positions + 1):
        raise BadRoutes(f"routes of {array.shape[0]} positions came for {positions}; is the prefix left out?")
    array = array[:positions]
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < shape.experts:
        raise BadRoutes(f"routes name experts {array.min()} to {array.max()} of a model that has {shape.experts}")
    return np.ascontiguousarray(array, np.min_scalar_type(max(shape.experts - 1, 0)))


def concatenate_routes(prompt: Any, sampled: Any) -> np.ndarray:
    """Routes that came in two parts, of the prompt and of what was sampled."""
    return np.concatenate([_array(prompt), _array(sampled)])


def _array(value: Any) -> np.ndarray:
    """The numbers, in whatever shape their encoding gives them."""
    if isinstance(value, str):
        raw = _bytes(value)
        if raw.startswith(_NPY):
            return _npy(raw)
        return _flat(raw, "<i4")
    if isinstance(value, Mapping):
        return _table(value)
    try:
        return _integers(np.asarray(value))
    except ValueError as error:
        raise BadRoutes(f"routes are lists of unequal lengths: {error}") from None


def _npy(raw: bytes) -> np.ndarray:
    try:
        return _integers(np.load(io.BytesIO(raw), allow_pickle=False))
    except (ValueError, EOFError) as error:
        raise BadRoutes(f"routes are no whole npy file: {error}") from None


def _table(value: Mapping[str, Any]) -> np.ndarray:
    try:
        raw, shape = _bytes(value["data"]), tuple(int(size) for size in value["shape"])
    except (KeyError, TypeError) as error:
        raise BadRoutes(f"routes came as a table without {error}; known are data, shape, dtype, start") from None
    if value.get("start", 0) != 0:
        raise BadRoutes(f"routes start at position {value['start']}: ask the server for those of the prompt too")
    count = int(np.prod(shape))
    width = len(raw) // max(count, 1)
    dtype = value.get("dtype") or {1: "uint8", 2: "int16", 4: "int32"}.get(width, "int32")
    array = _flat(raw, np.dtype(dtype).newbyteorder("<"))
    if array.size != count:
        raise BadRoutes(f"routes have {array.size} numbers of type {dtype} for the shape {shape}")
    return _integers(array.reshape(shape))


def _layered(array: np.ndarray, shape: RouteShape) -> np.ndarray:
    """[positions, layers with a router, K]: SGLang counts every layer, also those that have none."""
    top_k = shape.experts_per_token
    if array.ndim == 1:
        row = shape.layers * top_k
        if array.size % row:
            raise BadRoutes(f"{array.size} numbers are no rows of {shape.layers} layers by {top_k} experts")
        array = array.reshape(-1, shape.layers, top_k)
    if array.ndim != 3 or array.shape[2] != top_k or array.shape[1] not in (len(shape.moe_layers), shape.layers):
        wanted = f"[positions, {len(shape.moe_layers)} or {shape.layers}, {top_k}]"
        raise BadRoutes(f"routes of shape {list(array.shape)} came; those of this model are {wanted}")
    if array.shape[1] != len(shape.moe_layers):
        array = array[:, list(shape.moe_layers)]
    return array


def _integers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "iu" and array.size:
        raise BadRoutes(f"routes are of type {array.dtype}, not integers")
    return array


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRoutes(f"routes are not base64: {error}") from None


def _flat(raw: bytes, dtype: Any) -> np.ndarray:
    try:
        return np.frombuffer(raw, dtype)
    except ValueError as error:
        raise BadRoutes(f"routes are cut off: {error}") from None

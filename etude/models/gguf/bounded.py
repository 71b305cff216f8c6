"""The `gguf` library's reader of a file, held to the file: what a stranger wrote costs no more than a model does.

Owns `Bounded`. By itself the library goes on behind the end of a file, where it finds arrays of any length empty, makes
an object of each number of an array, and takes tensors that lie on each other or nowhere. Raises the bare ValueError of
a library; `models.gguf.reading` makes sentences of them, and imports this only where the library is there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

from etude.models import files
from etude.plain import in_a_sentence

_PARTS = 1 << 18
"""That a file is read in, beside its arrays: ten thousand tensors have fewer, and no model has so many."""
_ELEMENTS = 1 << 21
"""Of all arrays together. A vocabulary of 262,144 tokens has their texts, scores, kinds, and up to 600,000 merges."""
_DIMENSIONS = 4
"""Of a tensor in this format."""


class Bounded(GGUFReader):
    """Raises ValueError at once for what is too much or not there."""

    _parts = _elements = 0

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self._parts += 1
        if self._parts > _PARTS:
            raise ValueError("it says more than any model has to say")
        self._require(int(offset) + np.dtype(dtype).itemsize * int(count))
        return super()._get(offset, dtype, count, override_order)

    def _require(self, end: int) -> None:
        if end > len(self.data):
            raise ValueError("it ends too early")

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Of an array of numbers one part, and of texts one each."""
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count, at = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64), orig_offs + 12
        of, length = GGUFValueType(int(kind[0])), int(count[0])
        self._elements += length
        if self._elements > _ELEMENTS:
            raise ValueError(f"its lists have more than {_ELEMENTS:,} entries, and no model's have so many")
        if of == GGUFValueType.ARRAY:
            raise ValueError("it has a list of lists, and no model has one")
        if of == GGUFValueType.STRING:
            texts = self._texts(at, length)
            size, found = sum(8 + text.nbytes for text in texts), range(2, 2 + length)
        else:
            texts = [self._get(at, self.gguf_scalar_to_np[of], length)]
            size, found = texts[0].nbytes, range(2, 3)
        return 12 + size, [kind, count, *texts], list(found), [GGUFValueType.ARRAY, of]

    def _texts(self, at: int, count: int) -> list[np.ndarray]:
        """Each is its length and its bytes."""
        data, order = np.asarray(self.data), np.dtype(np.uint64).newbyteorder(self.byte_order)
        texts = []
        for _ in range(count):
            self._require(at + 8)
            end = at + 8 + int(data[at : at + 8].view(order)[0])
            self._require(end)
            texts.append(data[at + 8 : end])
            at = end
        return texts

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        """Each has bytes of the file, and for itself."""
        if start_offs > files.LARGE:
            raise ValueError(f"it says more than {files.LARGE:,} bytes beside its tensors")
        last = 0, ""
        for begin, end, name in sorted(_place(start_offs, *field.parts) for field in fields):
            if begin < last[0]:
                raise ValueError(f"its tensors {last[1]} and {name} lie on each other")
            self._require(end)
            last = end, name
        super()._build_tensors(start_offs, fields)


def _place(start: int, _size: Any, text: Any, _count: Any, dims: Any, kind: Any, offset: Any) -> tuple[int, int, str]:
    """First byte, end and name of a tensor."""
    name = in_a_sentence(str(bytes(text), "utf-8"))
    if len(dims) > _DIMENSIONS or not all(dims):
        raise ValueError(f"its tensor {name[:100]} has a shape that no tensor has")
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(int(kind[0]))]
    begin = int(start) + int(offset[0])
    return begin, begin + math.prod(map(int, dims)) * size // block, name[:100]

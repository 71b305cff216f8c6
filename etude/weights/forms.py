"""What an element of a tensor is: its width in memory and on the wire, and the 16-bit symbols that codecs see.

Owns the forms below. An array says its own form by its numpy dtype, so that codes cannot be taken for scales: bf16 and
fp32 are plain unsigned integers of their width, the rest one-byte records whose only field is called as the form. The
codecs move symbols in the order of `rice`: sign-magnitude, with the sign in bit 15. Never touches files or the network.

| form   | element                                | array of       | symbols an element                       |
|--------|----------------------------------------|----------------|------------------------------------------|
| bf16   | one bfloat16                           | uint16         | 1: its bits                              |
| fp32   | one float32                            | uint32         | 2: its high half and its low half, apart |
| e4m3   | an 8-bit code or scale (MXFP8, NVFP4)  | record of "e4m3"   | 1: its sign in bit 15, the rest below    |
| e8m0   | a power-of-two scale (MXFP8)           | record of "e8m0"   | 1: its byte                              |
| e2m1x2 | two 4-bit codes (NVFP4), the low first | record of "e2m1x2" | 2: as e4m3, the low code first           |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from etude.errors import WeightError

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
Array = np.ndarray
"""An array whose dtype is that of one of the `FORMS`."""
FormName = Literal["bf16", "fp32", "e4m3", "e8m0", "e2m1x2"]


@dataclass(frozen=True)
class Form:
    """How elements of a kind are stored and coded. `halves`: coded as two arrays of bf16's form, high and low."""

    name: FormName
    dtype: np.dtype
    shift: int = 7
    """What the range coder tells elements apart by is `symbol >> shift`: the exponent."""
    whole_shift: int = 6
    """So many of a symbol's lowest bits are as good as random (`whole`)."""
    halves: bool = False
    to_symbols: Callable[[U8], U16] | None = None
    from_symbols: Callable[[U16], U8] | None = None

    @property
    def wire(self) -> np.dtype:
        """The dtype of its bytes in a store."""
        return self.dtype.newbyteorder("<")

    def symbols(self, array: Array) -> U16:
        """The symbols of a contiguous [N] array: itself for bf16, else new ones. Not for a form of halves."""
        return array if self.to_symbols is None else self.to_symbols(array.view(np.uint8))

    def restore(self, symbols: U16, array: Array) -> None:
        """Put symbols into the array they came from. Raises WeightError for symbols that no element has."""
        if self.from_symbols is None or self.to_symbols is None:
            return  # they are the array's own
        restored = self.from_symbols(symbols)
        if not np.array_equal(self.to_symbols(restored), symbols):
            raise WeightError(f"a payload makes values that {self.name} does not have")
        array.view(np.uint8)[:] = restored


def form_of(array: Array, name: str = "an array") -> Form:
    """The form of an array; WeightError, naming it, for any other dtype."""
    form = _BY_DTYPE.get(array.dtype.newbyteorder("=")) if isinstance(array, np.ndarray) else None
    if form is None:
        known = ", ".join(f"{form.dtype} ({form.name})" for form in FORMS.values())
        kind = getattr(array, "dtype", type(array).__name__)
        raise WeightError(f"{name}: weights are arrays of bits, of dtype {known}, not {kind}")
    return form


def tagged(form: FormName, codes: U8) -> Array:
    """Bytes, as a quantiser gives them, as an array that says what they are."""
    return np.ascontiguousarray(codes).view(FORMS[form].dtype)


def to_wire(array: Array) -> Array:
    """The same elements, little endian and row-major."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _sign_above(codes: U8) -> U16:
    wide = codes.astype(np.uint16)
    return (wide & 0x80) << 8 | wide & 0x7F


def _sign_within(symbols: U16) -> U8:
    return (symbols >> 8 & 0x80 | symbols & 0x7F).astype(np.uint8)


def _nibbles(codes: U8) -> U16:
    wide = np.stack((codes & 15, codes >> 4), axis=-1).reshape(-1).astype(np.uint16)
    return (wide & 8) << 12 | wide & 7


def _pairs(symbols: U16) -> U8:
    codes = (symbols >> 12 & 8 | symbols & 7).astype(np.uint8).reshape(-1, 2)
    return codes[:, 0] | codes[:, 1] << 4


def _record(name: str) -> np.dtype:
    return np.dtype([(name, np.uint8)])


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("bf16", np.dtype(np.uint16)),
        Form("fp32", np.dtype(np.uint32), halves=True),
        Form("e4m3", _record("e4m3"), 3, 1, False, _sign_above, _sign_within),
        Form("e8m0", _record("e8m0"), 7, 0, False, lambda codes: codes.astype(np.uint16), lambda s: s.astype(np.uint8)),
        Form("e2m1x2", _record("e2m1x2"), 1, 0, False, _nibbles, _pairs),
    )
}
_BY_DTYPE = {form.dtype: form for form in FORMS.values()}

"""Which texts are copies of earlier ones: exact, but for layout, or nearly so.

Owns `Copies`: MinHash (Broder 1997) over runs of five words, found again through bands and compared by what their
signatures share, as The Stack does it (arXiv 2211.15533). Fifty lines of numpy, as the library for it, `datasketch`,
needs scipy. The same texts in the same order give the same answers on every machine.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BANDS, ROWS = 25, 5
"""Two texts that share four fifths of their runs meet in a band 9,999 times in 10,000."""
NEAR = 0.8
"""So much of all runs of two texts in both makes them near copies."""
RUN = 5
_PRIME = np.uint64(4_294_967_291)
_WORD = re.compile(r"\w+|[^\w\s]")
Signature = NDArray[np.uint32]


@dataclass(frozen=True)
class Copy:
    """Of which text, by the number it was added as, and whether word by word."""

    of: int
    exact: bool


@dataclass
class Copies:
    """The texts there were so far, without the copies."""

    _exact: dict[bytes, int] = field(default_factory=dict)
    _bands: dict[bytes, list[int]] = field(default_factory=dict)
    _signatures: list[Signature] = field(default_factory=list)

    def find(self, text: str) -> Copy | None:
        """What it is a copy of. A text that is none is added, with the next number."""
        words = _WORD.findall(text)
        digest = hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).digest()
        if (known := self._exact.get(digest)) is not None:
            return Copy(known, True)
        signature = signature_of(words)
        bands = [bytes([at]) + part.tobytes() for at, part in enumerate(signature.reshape(BANDS, ROWS))]
        for other in dict.fromkeys(number for band in bands for number in self._bands.get(band, ())):
            if similarity(self._signatures[other], signature) >= NEAR:
                return Copy(other, False)
        self._exact[digest] = number = len(self._signatures)
        self._signatures.append(signature)
        for band in bands:
            self._bands.setdefault(band, []).append(number)
        return None


def similarity(one: Signature, other: Signature) -> float:
    """The share of runs in both texts, of those in either, as the signatures tell it."""
    return float((one == other).mean())


def signature_of(words: list[str]) -> Signature:
    """The least hash of its runs, by each of as many hash functions [BANDS * ROWS]."""
    count = max(1, len(words) - RUN + 1)
    runs = {zlib.crc32(" ".join(words[at : at + RUN]).encode("utf-8", "replace")) for at in range(count)}
    hashed = np.fromiter(runs, np.uint64, len(runs)) % _PRIME
    return np.concatenate([_least(hashed, part) for part in np.array_split(_FACTORS, 5)])


def _least(hashed: NDArray[np.uint64], factors: NDArray[np.uint64]) -> Signature:
    products = hashed[None] * factors[:, :1] + factors[:, 1:]
    return (products % _PRIME).min(axis=1).astype(np.uint32)


# below 2^31: a product of one and a hash is below 2^63, and the sum below 2^64
_FACTORS = np.random.default_rng(20111).integers(1, 1 << 31, (BANDS * ROWS, 2), dtype=np.uint64)

"""Amounts as a person reads them, of small models and of large ones."""

from __future__ import annotations

GIB = 2**30
_LARGE = ((1e15, "peta"), (1e12, "tera"), (1e9, "giga"), (1e6, "mega"))
_SHORT = ((1e9, " billion"), (1e6, " million"), (1e3, " thousand"))


def size_of(count: int) -> str:
    """Bytes."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"


def flops_of(count: float) -> str:
    unit, name = next((each for each in _LARGE if count >= each[0]), _LARGE[-1])
    return f"{count / unit:,.1f} {name}flop"


def number_of(count: int) -> str:
    unit, name = next((each for each in _SHORT if count >= each[0]), (1, ""))
    return f"{count / unit:,.2f}{name}" if name else str(count)


def of_many(count: int, one: str) -> str:
    """So many of something, with an s where it is not one."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"

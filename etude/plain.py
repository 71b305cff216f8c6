"""Text that cannot drive a terminal.

Owns `plain` and its kin, `exact` for what a user is asked to allow, and `say`, by which commands print. A model, a
file or a command may say anything, escape sequences included: those that move the cursor, recolour, retitle, write the
clipboard or answer as if they were typed. So every control character is made visible instead of sent, and so are those
that turn the direction of writing or cannot be seen, by which a command could look like another. Whatever of ours
writes to a terminal or a log lets nothing past that has not been through here. Works piece by piece: what one character
becomes depends on no other, so joiners and the forms of emoji, which honest words hold, are let be but by `exact`.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import MutableMapping
from typing import IO, Any

_UNSEEN = {
    # no width: Unicode's Default_Ignorable_Code_Point
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010),
    *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0,
    *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000),
    # letters without ink, separators of lines, and further marks of format
    0x2800, 0x2028, 0x2029, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, *range(0xFFF9, 0xFFFC),
    0x110BD, 0x110CD, *range(0x13430, 0x13440),
}  # fmt: skip
_KEPT = {0x200C, 0x200D, 0xFE0E, 0xFE0F, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Of these, what honest text is written with: joiners of scripts and emoji, an emoji's form, signs before numbers."""
_SIZES = ("", "k", "K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti")
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_TAB = 4
_WORD = re.compile(r"[^\W\d_]+")
_UNITS = {"s", "m", "h", "ms", "it", "eta", "ETA", *(f"{size}{unit}" for unit in "Bb" for size in _SIZES)}
_MOST_OVER = 1000


def _shown(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:02X}>" if code < 0x100 else f"<U+{code:04X}>"


_EXACT = {code: _shown(code) for code in (*range(0x20), *range(0x7F, 0xA0), *_UNSEEN) if code != 0x0A}
_EXACT |= {0x09: " " * _TAB, **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}
_TABLE = {code: shown for code, shown in _EXACT.items() if code not in _KEPT}


def plain(text: str) -> str:
    """The same text, to be looked at: newlines stay, tabs become spaces, `ESC` is shown as ␛."""
    return text.translate(_TABLE)


def exact(text: str) -> str:
    """The same, and nothing that cannot be seen is left, not even what emoji and scripts are written with: for what a
    user is asked to allow. There `pus<U+FE0F>h` must not look like `push`."""
    return text.translate(_EXACT)


def unseen(text: str) -> str:
    """The first character of a text that cannot be seen as it is, newlines and tabs aside; nothing if there is none."""
    return next((each for each in text if ord(each) in _EXACT and each != "\t"), "")


def plain_line(text: str) -> str:
    """The same on one line."""
    return " ".join(plain(text).split())


def in_a_sentence(text: str) -> str:
    """The same with newlines shown, too: a name that holds one is a part of its sentence, and begins no other."""
    return plain(text).replace("\n", "\u240a")


def plain_output(line: str) -> str:
    """A line that a command printed: without colours, and as it stands after what a progress bar wrote over it. What
    was written over and says something else stays, before a ␍: a model reads it too, so a user must be able to."""
    *over, last = _COLOURS.sub("", line).rstrip("\r").split("\r")
    told, words = [last], _words(last)
    for part in reversed(over):
        if not (new := _words(part)) <= words:
            told.append(part)
            words |= new
    whole = "\r".join(reversed(told))
    return plain(whole if len(told) == 1 or len(whole) <= _MOST_OVER else f"…{whole[-_MOST_OVER:]}")


def _words(text: str) -> set[str]:
    """What a text says: not its numbers and bars, nor the units that change with them."""
    return set(_WORD.findall(text)) - _UNITS


def is_plain(text: str) -> bool:
    """Whether every character of a text may be sent as it is."""
    return text.translate(_TABLE) == text


def short_line(text: str, limit: int = 200) -> str:
    """The first line of a text, cut: for a cell of a table."""
    return plain_line(text.strip().split("\n", 1)[0][:limit])


def say(text: str, file: IO[str] | None = None) -> None:
    """Print it. Tabs stay, for a patch with spaces in their place does not apply; so do newlines, and nothing else."""
    kept = "\t".join(plain(part) for part in text.split("\t"))
    print(kept, file=file or sys.stdout, flush=True)


def plain_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog's: what was said by others stands in a log as it would on a screen."""
    return {key: plain(value) if isinstance(value, str) else value for key, value in event.items()}


def plain_traceback(out: IO[str], raised: Any) -> None:
    """A formatter of structlog's. Without the values of variables: keys are among them."""
    out.write("\n" + plain("".join(traceback.format_exception(*raised))))

"""Text that cannot drive a terminal.

Owns `plain` and its kin, and `say`, by which commands print. A model, a file or a command may say anything, escape
sequences included: those that move the cursor, recolour, retitle, write the clipboard or answer as if they were typed.
So every control character is made visible instead of sent, and so are those that turn the direction of writing or
cannot be seen, by which a command could look like another. Whatever of ours writes to a terminal or a log lets nothing
past that has not been through here. Works piece by piece: what one character becomes depends on no other.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import MutableMapping
from typing import IO, Any

_INVISIBLE = {
    0x061C, 0x200B, 0x200E, 0x200F, 0x2028, 0x2029, 0x2060, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A),
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
}  # fmt: skip
"""Marks of direction, separators of lines, and characters without a width, but for the joiners that scripts need."""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_TAB = 4


def _shown(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<{code:02X}>" if code < 0x100 else f"<U+{code:04X}>"


_TABLE = {code: _shown(code) for code in (*range(0x20), *range(0x7F, 0xA0), *_INVISIBLE) if code != 0x0A}
_TABLE |= {0x09: " " * _TAB, **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}


def plain(text: str) -> str:
    """The same text, to be looked at: newlines stay, tabs become spaces, `ESC` is shown as ␛."""
    return text.translate(_TABLE)


def plain_line(text: str) -> str:
    """The same on one line."""
    return " ".join(plain(text).split())


def plain_output(line: str) -> str:
    """A line that a command printed: without colours, and as it stands after what a progress bar wrote over it."""
    last = _COLOURS.sub("", line).rstrip("\r").rpartition("\r")[2]
    return plain(last)


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

"""Colours for the lines of a code block, one at a time, as they come.

Owns `Code`. A line is coloured by what stands above it in its block, so a string or a comment of several lines is seen
as one; no line is ever coloured again. Knows the languages that Pygments knows; any other is of one colour.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer

PLAIN = "cyan"
_LINES, _LONGEST = 60, 400
"""How many lines above are read for one, and the longest that are: a lexer's time may grow faster than its text."""
_STYLES = {
    "Keyword": "magenta", "Operator.Word": "magenta", "Name.Function": "blue", "Name.Class": "blue bold",
    "Name.Decorator": "yellow", "Name.Builtin": PLAIN, "Name.Tag": "blue", "Literal.String": "green",
    "Literal.Number": "yellow", "Comment": "bright_black italic", "Generic.Deleted": "red",
    "Generic.Inserted": "green", "Generic.Heading": "bold", "Generic.Subheading": "bold",
}  # fmt: skip


class Code:
    """One block; `language` is what stands behind its opening mark."""

    def __init__(self, language: str) -> None:
        self._lexer = _lexer(language)
        self._above: deque[str] = deque(maxlen=_LINES)

    def line(self, text: str) -> list[tuple[str, str]]:
        """The next line in pieces, each with its style."""
        if self._lexer is None or len(text) > _LONGEST:
            return [(text, PLAIN)]
        self._above.append(text)
        whole = "\n".join([*self._above, ""])  # a lexer knows a line by its end
        start = len(whole) - len(text) - 1
        pieces = []
        for at, token, value in self._lexer.get_tokens_unprocessed(whole):
            if shown := value[max(start - at, 0) :].rstrip("\n"):
                pieces.append((shown, _style(str(token).removeprefix("Token."))))
        return pieces


def _lexer(language: str) -> Lexer | None:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    name = re.match(r"[\w+#.-]*", language.strip().lstrip("{."))
    try:
        return get_lexer_by_name(name[0]) if name and name[0] else None
    except ClassNotFound:
        return None


def _style(token: str) -> str:
    """Of a token's type or, where that has none, of what it is a kind of."""
    while token:
        if token in _STYLES:
            return _STYLES[token]
        token = token.rpartition(".")[0]
    return ""

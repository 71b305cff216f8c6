"""Whether a file is worth learning from: text that a person wrote, in lines that a person reads.

Owns `fault_of`, with the rules that The Stack and StarCoder's data use (arXiv 2211.15533, 2305.06161): nothing that is
generated, minified or binary, no lines that are too long, little that is mostly data. Each rule has a name, which the
manifest counts by. Judges neither licences nor secrets.
"""

from __future__ import annotations

import re
from statistics import fmean

from etude.trainer.corpus.languages import PROSE

LEAST_CHARS = 60
LONGEST_LINE, MEAN_LINE = 1000, 100
_FEW_LINES, _MANY_LINES = 5, 40
_HEAD = 1500
_GENERATED = re.compile(
    r"@generated\b|\bDO NOT (?:EDIT|MODIFY)\b|(?i:\bauto(?:matically)?[ -]?generated\b|^generated (?:by|from|with)\b"
    r"|\bthis (?:file|code) (?:is|was|has been) (?:\w+ )?generated\b|\bgenerated code\b)"
)
_COMMENT = re.compile(r"\s*(?:#+|//+|/?\*+|--|;+|<!--)\s*")
_MINIFIED = re.compile(r"[.-]min\.(?:js|css|mjs)$")
_ITEM, _BETWEEN = r"""(?:-?\d[\w.+-]*|"[^"]*"|'[^']*')""", r"[\s\[\](){},:;]"
_DATA_LINE = re.compile(rf"{_BETWEEN}*{_ITEM}(?:{_BETWEEN}+{_ITEM})*{_BETWEEN}*")
"""A line of nothing but numbers and strings."""
_MOST_DATA, _LEAST_LETTERS = 0.6, 0.25


def text_of(data: bytes) -> str | None:
    """As text, with the newlines of Unix; None for what is binary, or in an encoding of its own."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None


def fault_of(path: str, text: str, language: str) -> str | None:
    """The first rule that a file breaks, by its name."""
    lines = text.split("\n")
    filled = [line for line in lines if line.strip()]
    if len(text.strip()) < LEAST_CHARS:
        return "too_small"
    if _MINIFIED.search(path) or (language not in PROSE and fmean(map(len, filled)) > 4 * MEAN_LINE):
        return "minified"
    if _is_generated(text):
        return "generated"
    if language not in PROSE and max(map(len, lines)) > LONGEST_LINE:
        return "long_lines"
    if language not in PROSE and len(filled) >= _FEW_LINES and fmean(map(len, filled)) > MEAN_LINE:
        return "long_lines"
    if _is_data(text, filled, language):
        return "data"
    return None


def _is_generated(text: str) -> bool:
    """A comment at its beginning says so."""
    head = text[:_HEAD].split("\n")[:20]
    comments = (line[found.end() :] for line in head if (found := _COMMENT.match(line)))
    return any(_GENERATED.search(comment) for comment in comments)


def _is_data(text: str, filled: list[str], language: str) -> bool:
    letters = sum(map(str.isalpha, text))
    if letters < _LEAST_LETTERS * len(text):
        return True
    if language in PROSE or len(filled) < _MANY_LINES:
        return False
    return sum(_DATA_LINE.fullmatch(line) is not None for line in filled) > _MOST_DATA * len(filled)

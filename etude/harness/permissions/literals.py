"""One word of a shell's line: its text, where that is certain, or the pieces it is made of.

Owns `Word` and `word_of`, which reads one from tree-sitter-bash's nodes. What the pieces could stand for is
`permissions.words`'s to say; which words make a command, `permissions.shell`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Part:
    """A piece of a word: text as the shell sees it, or the name of a variable."""

    text: str
    variable: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Word:
    """One word. `text` is its value after quotes are taken off; None where only a run could tell it."""

    text: str | None
    raw: str
    parts: tuple[Part, ...] | None = None
    """What it is made of, for `permissions.words`; None where there is more in it than text and plain variables, and
    nothing where all of that is in quotes."""

    @property
    def quoted(self) -> bool:
        """Whether it is one word whatever it holds, and no pattern."""
        return self.parts is not None and all(part.quoted for part in self.parts)

    def __str__(self) -> str:
        return self.raw


WORDS = {"word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "expansion", "simple_expansion"}
PATTERNS = {"extglob_pattern", "regex"}
_ESCAPE_IN_STRING = re.compile(r"\\([\\$\"`\n])")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNSETTLED = re.compile(r"(?<!\\)(?:\\\\)*(?:[*?\[]|\{.*(?:,|\.\.))|^~[^/]", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*|[?#!$])\}|([A-Za-z_]\w*|[?#!$]))")


def text_of(node: Node) -> str:
    """As it stands in the line."""
    return (node.text or b"").decode(errors="replace")


def word_of(node: Node) -> Word:
    """What a node that is one word holds."""
    raw = text_of(node)
    value = _value(node)
    parts = None if value is not None else _parts(node)
    return Word(value, raw, () if parts is None and node.type == "string" else parts)


def _parts(node: Node) -> tuple[Part, ...] | None:
    """The pieces of a word that is not certain; None where one of them can be anything."""
    raw = text_of(node)
    if node.type in ("word", "number") or (node.type in PATTERNS and not re.search(r"['\"$`]", raw)):
        pieces = re.findall(r"\\(.)|([^\\]+)", raw, re.DOTALL)
        return tuple(Part(escaped or plain, quoted=bool(escaped)) for escaped, plain in pieces)
    if node.type == "raw_string":
        return (Part(raw[1:-1], quoted=True),)
    if node.type in ("simple_expansion", "expansion"):
        found = _VARIABLE.fullmatch(raw)
        return (Part(found[1] or found[2], variable=True),) if found else None
    if node.type == "string":
        return _parts_in_quotes(node)
    if node.type == "concatenation":
        inside = [_parts(child) for child in node.children]
        return None if None in inside else tuple(part for parts in inside if parts is not None for part in parts)
    return None


def _parts_in_quotes(node: Node) -> tuple[Part, ...] | None:
    """What lies between the expansions counts, not the grammar's nodes: blanks belong to an expansion in some of them,
    and to none in others."""
    source, parts, at = node.text or b"", list[Part](), 1
    for child in (child for child in node.children if child.is_named and child.type != "string_content"):
        raw, start = text_of(child), child.start_byte - node.start_byte
        found = _VARIABLE.fullmatch(raw.lstrip(" \t\n"))
        if found is None:
            return None
        blank = raw[: len(raw) - len(raw.lstrip(" \t\n"))]
        parts.append(Part(_unescaped(source[at:start].decode(errors="replace") + blank), quoted=True))
        parts.append(Part(found[1] or found[2], variable=True, quoted=True))
        at = child.end_byte - node.start_byte
    return (*parts, Part(_unescaped(source[at:-1].decode(errors="replace")), quoted=True))


def _unescaped(text: str) -> str:
    return _ESCAPE_IN_STRING.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def _value(node: Node) -> str | None:
    """What a word stands for, if that is certain before it is run."""
    raw = text_of(node)
    if node.type in ("word", "number", "variable_name"):
        return None if _UNSETTLED.search(raw) else _ESCAPE.sub(r"\1", raw)
    if node.type == "raw_string":
        return raw[1:-1]
    if node.type == "string":
        if any(child.is_named and child.type != "string_content" for child in node.children):
            return None
        return _ESCAPE_IN_STRING.sub(lambda found: "" if found[1] == "\n" else found[1], raw[1:-1])
    if node.type == "concatenation":
        bare = [text_of(child) for child in node.children if child.type not in ("string", "raw_string")]
        if _UNSETTLED.search("".join(bare)):
            return None
        values = [_value(child) for child in node.children]
        return None if None in values else "".join(value for value in values if value is not None)
    return None

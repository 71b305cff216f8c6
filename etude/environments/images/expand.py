"""Variables in a Dockerfile's instructions: `$name`, `${name}`, `${name:-word}` and its three siblings; and quotes.

Owns expansion and the removal of quotes. Knows nothing of which variables there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etude.environments.images.dockerfile import split_quoted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(:?[-+?])(.*))?", re.S)


class ExpansionError(ValueError):
    """What is wrong with a word; the caller adds file and line."""


def expand(word: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """The word with its variables replaced and its quotes gone. A variable that is not set is empty."""
    return _Expansion(word, variables, escape).whole()


def expand_literal(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """The same for a here-document: quotes are text in it."""
    return _Expansion(text, variables, escape, quotes=False).whole()


def pairs(text: str, variables: Mapping[str, str], escape: str = "\\") -> list[tuple[str, str]]:
    """The `name=value …` or old `name value` of ENV and LABEL."""
    words = split_quoted(text, escape)
    if "=" not in words[0]:
        name, _, value = text.partition(" ")
        if not value.strip():
            raise ExpansionError(f"{name!r} has no value: write {name}=value")
        return [(expand(name, variables, escape), expand(value.strip(), variables, escape))]
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ExpansionError(f"{word!r} is not name=value")
        found.append((expand(name, variables, escape), expand(value, variables, escape)))
    return found


class _Expansion:
    def __init__(self, text: str, variables: Mapping[str, str], escape: str, quotes: bool = True) -> None:
        self._text = text
        self._variables = variables
        self._escape = escape
        self._quotes = quotes
        self._at = 0

    def whole(self) -> str:
        done = ""
        quote = ""
        while self._at < len(self._text):
            character = self._text[self._at]
            if quote == "'":
                self._at += 1
                done, quote = (done, "") if character == "'" else (done + character, quote)
            elif character == self._escape:
                done += self._escaped(quote)
            elif self._quotes and character in "'\"" and (not quote or character == quote):
                quote = "" if quote else character
                self._at += 1
            elif character == "$":
                done += self._variable()
            else:
                done += character
                self._at += 1
        if quote:
            raise ExpansionError(f"a quote ({quote}) does not end in {self._text!r}")
        return done

    def _escaped(self, quote: str) -> str:
        """Where quotes count, an escape stands for what follows it; within double quotes only before what it guards."""
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        guarded = f'"${self._escape}' if quote or self._quotes else f"${self._escape}"
        if (quote or not self._quotes) and following not in guarded:
            return self._escape + following
        return following

    def _variable(self) -> str:
        self._at += 1
        if self._text[self._at : self._at + 1] == "{":
            return self._braced()
        match = _NAME.match(self._text, self._at)
        if match is None:
            return "$"  # of a word such as $$ or $1: no variable of a build
        self._at = match.end()
        return self._variables.get(match[0], "")

    def _braced(self) -> str:
        start, depth = self._at + 1, 0
        for end in range(self._at, len(self._text)):
            depth += {"{": 1, "}": -1}.get(self._text[end], 0)
            if depth == 0:
                break
        else:
            raise ExpansionError(f"a brace does not end in {self._text!r}")
        self._at = end + 1
        match = _FORM.fullmatch(self._text[start:end])
        if match is None:
            raise ExpansionError(
                f"${{{self._text[start:end]}}} is not supported; of ${{name:-word}}, `-`, `+` and `?` are"
            )
        name, form, word = match[1], match[2] or "", match[3] or ""
        value = self._variables.get(name)
        there = value is not None and not (form.startswith(":") and value == "")
        if form.endswith("+"):
            return expand(word, self._variables, self._escape) if there else ""
        if there or not form:
            return value or ""
        replacement = expand(word, self._variables, self._escape)
        if form.endswith("?"):
            raise ExpansionError(f"{name} is not set: {replacement or 'give it as a build argument'}")
        return replacement

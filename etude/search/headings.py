"""In one line, what a piece is: what it defines, or what it stands in and how it begins.

Owns `heading`. It reads the lines of the file as people do, by their words and their indentation, so it needs no parser
and holds for every language.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from etude.search.base import Hit
from etude.search.pieces import is_comment, is_definition
from etude.search.syntax import LANGUAGE_OF

_FUNCTION = re.compile(r"\b(?:def|func|fn|fun|function)\s+(\w+)")
_TYPE = re.compile(r"\b(?:class|interface|struct|enum|trait|impl|namespace|protocol|object|module)\s+\w")
_CLOSES = re.compile(r"\s*(?:[)\]}]|\W+$)")
_MOST_OUTER = 60


def heading(hit: Hit, file: Sequence[str], most: int) -> tuple[int, str]:
    """The number of a piece's line that says what it is, and that line: of a definition, if there is one, or else the
    first that is no comment, after the function that it stands in. As many characters at most."""
    lines = [(number, line) for number, line in enumerate(file[hit.first - 1 : hit.last], hit.first) if line.strip()]
    if not lines:
        return hit.first, ""
    ending = posixpath.basename(hit.path).rpartition(".")[2].lower()
    if ending in LANGUAGE_OF or lines[0][1].lstrip().startswith(("/*", "//")):
        lines = [each for each in lines if re.search(r"\w", each[1]) and not is_comment(each[1])] or lines
    defines = next((number for number, line in lines if is_definition(line) and not line.lstrip().startswith("@")), 0)
    number = defines or lines[0][0]
    text = _whole(file[number - 1 : hit.last], most)
    outer = "" if defines else _outer(file, number)
    return number, (f"in {outer}: {text}" if outer else text)[:most]


def _whole(lines: Sequence[str], most: int) -> str:
    """The first line, with those after it until its brackets are closed."""
    text = ""
    for line in lines:
        text = f"{text} {line.strip()}".lstrip()
        if len(text) >= most or text.count("(") + text.count("[") <= text.count(")") + text.count("]"):
            break
    return re.sub(r"(?<=[(\[]) |,? (?=[)\]])", "", text)


def _outer(file: Sequence[str], number: int) -> str:
    """The function that a line stands in; one that no keyword tells, as a method of Java, is named by its line. "" at
    the top of a file and of a type."""
    inside = ""
    for line in _around(file, number):
        if found := _FUNCTION.search(line):
            return found.group(1)
        if _TYPE.search(line):
            break
        inside = line.strip(" \t{(:")[:_MOST_OUTER]
    return inside


def _around(file: Sequence[str], number: int) -> Iterator[str]:
    """The lines above one that it is indented below, the nearest first, without the ends of what goes over several."""
    depth = _depth(file[number - 1])
    for line in reversed(file[: number - 1]):
        if depth == 0:
            return
        if line.strip() and (here := _depth(line)) < depth and not is_comment(line) and not _CLOSES.match(line):
            depth = here
            yield line


def _depth(line: str) -> int:
    wide = line.expandtabs(4)
    return len(wide) - len(wide.lstrip())

"""What a source file does about the things that projects agree on: one occurrence a place.

Owns `occurrences`: indentation, quotes, names, annotations, docstrings, semicolons and blanks at line ends,
each as a convention, the way it was done, and the line. Python is read with its own tokenizer and parser, a few other
languages line by line. Judges nothing (`style`); reads text and runs nothing.
"""

from __future__ import annotations

import ast
import io
import posixpath
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from etude import syntax

_INDENTED = re.compile(r"^([ \t]+)\S")
_STRING = re.compile(r"(?<![\w'\"`\\])(['\"])(?:(?!\1|\\|\n).|\\.)*\1")
_STATEMENT = re.compile(r"^\s*(?:const|let|var|return|import|export|throw)\b.*[\w)\]'\"`;]$")
_CAMEL, _SNAKE = re.compile(r"^_*[a-z]+[a-z0-9]*[A-Z]"), re.compile(r"^_*[a-z][a-z0-9]*_[a-z0-9_]+$")
_SCRIPTS = {".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs"}
_BY_LINE = {*_SCRIPTS, ".go", ".rs", ".java", ".c", ".h", ".cc", ".cpp", ".rb", ".lua", ".sh"}


class Occurrence(NamedTuple):
    convention: str
    way: str
    line: int


def known(path: str) -> bool:
    """Whether anything is known of files with such a name."""
    return language_of(path) == ".py" or language_of(path) in _BY_LINE


def language_of(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def occurrences(path: str, text: str) -> list[Occurrence]:
    """All of a file, in no order. A Python file that cannot be read as one is read line by line."""
    found = [*_of_lines(text)]
    language = language_of(path)
    if language == ".py":
        try:
            return [*found, *_of_tokens(text), *_of_tree(syntax.parse(text))]
        except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
            return found
    if language in _SCRIPTS:
        found += _of_scripts(text)
    return found


def _of_lines(text: str) -> Iterator[Occurrence]:
    depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield Occurrence("blanks at line ends", "some" if line != line.rstrip() else "none", number)
        if match := _INDENTED.match(line):
            indent = match[1]
            if indent[0] == "\t":
                yield Occurrence("indentation", "tabs", number)
            elif 0 < len(indent) - depth <= 8 and depth % 2 == 0:
                yield Occurrence("indentation", f"{len(indent) - depth} blanks", number)
            depth = len(indent)
        elif line.strip():
            depth = 0


def _of_scripts(text: str) -> Iterator[Occurrence]:
    for number, line in enumerate(text.split("\n"), 1):
        for match in _STRING.finditer(line):
            yield Occurrence("quotes", match[1], number)
        if _STATEMENT.match(line):
            yield Occurrence("semicolons", "written" if line.endswith(";") else "left out", number)


def _of_tokens(text: str) -> Iterator[Occurrence]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            body = token.string.lstrip("rRbBuUfF")
            if not body.startswith(('"""', "'''")) and not set("'\"") & set(body[1:-1]):
                yield Occurrence("quotes", body[0], token.start[0])


def _of_tree(tree: ast.Module) -> Iterator[Occurrence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield _documented("docstrings of classes", node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield from _named("names of variables", node.id, node.lineno)


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Occurrence]:
    yield from _named("names of functions", node.name, node.lineno)
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    told = [each for each in given if each.arg not in ("self", "cls")]
    if told or node.returns is not None:
        annotated = node.returns is not None or all(each.annotation is not None for each in told)
        yield Occurrence("annotations", "written" if annotated else "left out", node.lineno)
    if not node.name.startswith("_"):
        yield _documented("docstrings of functions", node)


def _documented(convention: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Occurrence:
    return Occurrence(convention, "written" if ast.get_docstring(node) is not None else "left out", node.lineno)


def _named(convention: str, name: str, line: int) -> Iterator[Occurrence]:
    """Names of one word tell nothing."""
    if _SNAKE.match(name):
        yield Occurrence(convention, "snake_case", line)
    elif _CAMEL.match(name):
        yield Occurrence(convention, "camelCase", line)

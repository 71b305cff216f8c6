"""Python's text as a tree, from any thread.

Owns `parse`, `expression` and `literal`, by which all of Etude reads Python, in place of `ast.parse` and
`ast.literal_eval` of a text. Before 3.11.9 Python counts how deep it is in one place for all threads (gh-106905): two
that parse at once end in a SystemError, and mining a repository, or judging a session, does that. One at a time costs
nothing: they share the interpreter's lock anyway.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_ONE = threading.RLock()  # again in the same thread: a collection in the middle may run what parses


def parse(source: str | bytes) -> ast.Module:
    """As `ast.parse`, with what it raises."""
    with _ONE:
        return ast.parse(source)


def expression(text: str) -> ast.expr:
    """As `ast.parse` of one expression, with what it raises."""
    with _ONE:
        return ast.parse(text, mode="eval").body


def literal(text: str) -> Any:
    """As `ast.literal_eval` of a text, with what it raises."""
    with _ONE:
        return ast.literal_eval(text)

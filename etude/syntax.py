"""Python's text as a tree, from any thread.

Owns `parse`, `expression` and `literal`, by which all of Etude reads Python, in place of `ast.parse` and
`ast.literal_eval` of a text. Before 3.11.9 Python counts how deep it is in one place for all that parses (gh-106905):
two threads that parse at once end in a SystemError, as mining a repository and judging a session would, and so does a
parse in whose middle garbage is collected that parses itself, as printing a traceback does. One at a time, with nothing
collected, costs nothing: threads share the interpreter's lock anyway.
"""

from __future__ import annotations

import ast
import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_ONE = threading.RLock()


@contextmanager
def _alone() -> Generator[None]:
    with _ONE:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def parse(source: str | bytes) -> ast.Module:
    """As `ast.parse`, with what it raises."""
    with _alone():
        return ast.parse(source)


def expression(text: str) -> ast.expr:
    """As `ast.parse` of one expression, with what it raises."""
    with _alone():
        return ast.parse(text, mode="eval").body


def literal(text: str) -> Any:
    """As `ast.literal_eval` of a text, with what it raises."""
    with _alone():
        return ast.literal_eval(text)

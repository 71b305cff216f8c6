"""What a stranger's template may spend: one budget of steps, and the most that one value may hold.

Owns `budget`, which gives steps, `charge` and what else takes them, and `weight`, which says how large a value is.
Steps are counted, never seconds, so that a template does the same on every machine. Knows nothing of Jinja's parts
(`models.template_limits`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

SIZE = 1 << 24
"""Characters of one value; an item of a list counts as `_ITEM` of them."""
STEPS = 300_000
_UNIT, _ITEM = 64, 64
BITS = 60
"""No number of a template needs more bits; larger ones can be made that all have one hash, and fill a table slowly."""
HOLDING = (list, tuple, dict, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
_left: ContextVar[list[int]] = ContextVar("steps that a template has left")


class TooMuch(TemplateError):
    """A template has done more than any that renders a conversation."""


@contextmanager
def budget(steps: int) -> Generator[None]:
    """What is rendered in the block has so many steps, together."""
    token = _left.set([steps])
    try:
        yield
    finally:
        _left.reset(token)


def charge(size: int) -> None:
    """Pay for a step that handles so many characters."""
    left = _left.get(None)
    if left is None:  # it is being compiled
        raise TooMuch("a template computes nothing before it is rendered")
    left[0] -= 1 + size // _UNIT
    if left[0] < 0:
        raise TooMuch("it works on without an end in sight; give the checkpoint a simpler template")


def weight(value: Any) -> int:
    """The characters of a value and of all in it, as often as they would be written."""
    total, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            total += len(each)
        elif isinstance(each, bytes | range):
            total += _ITEM * len(each)
        elif isinstance(each, int):
            total += each.bit_length() // 3
            if each.bit_length() > BITS:
                raise TooMuch("a number has become too large")
        elif isinstance(each, Namespace):
            waiting.append(object.__getattribute__(each, "_Namespace__attrs"))
            total += _ITEM
        elif isinstance(each, HOLDING):
            parts = [*each, *each.values()] if isinstance(each, dict) else list(each)
            total += _ITEM * len(parts)
            waiting += parts if total <= SIZE else ()
        if total > SIZE:
            raise TooMuch(f"a value has become larger than {SIZE:,} characters; give the checkpoint a simpler template")
    return total


def paid(value: Any) -> Any:
    """The value, for which is paid by all that is in it."""
    charge(weight(value))
    return value


def paid_shallow(value: Any) -> Any:
    """The value, for which is paid by what it consists of."""
    charge(len(value) if isinstance(value, (str, range, *HOLDING)) else 0)
    return value


def paid_size(size: int) -> None:
    """Pay for what will be made, and has so many characters."""
    if size > SIZE:
        raise TooMuch(f"a value would become larger than {SIZE:,} characters; give the checkpoint a simpler template")
    charge(size)

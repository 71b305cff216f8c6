"""Keys that configs had and have no more: what to write in their place.

Owns the one table of them, by the config's class. `etude.config` refuses each by name, with what is said here.
"""

from __future__ import annotations


def _wait(seconds: float) -> str:
    return f"it is now fixed at {seconds:g} s because nobody set it; to wait longer, write [deadlines] scale = 2"


def _fixed(at: object, because: str) -> str:
    return f"it is now fixed at {at} because {because}"


RETIRED: dict[str, dict[str, str]] = {}
"""Class -> key -> what became of it. Those of a class hold for all that inherit from it."""

"""What comes with Etude beside its code: a wheel holds it inside the package, a clone beside it.

Owns `shipped_at`. So commands find it in any directory. Loads nothing.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped_at(name: str) -> Path:
    """The directory of a model of that name."""
    in_wheel = _PACKAGE / "shipped" / name
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / "models" / name

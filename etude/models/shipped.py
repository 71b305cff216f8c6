"""Where the small model is that comes with Etude.

Owns `shipped_model`. A wheel holds it inside the package, a clone beside it, so commands find it in any directory.
Loads nothing.
"""

from __future__ import annotations

from pathlib import Path

_NAME = "etude-tiny"
_PACKAGE = Path(__file__).parents[1]


def shipped_model() -> Path:
    """The checkpoint's directory."""
    in_wheel = _PACKAGE / "shipped" / _NAME
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / "models" / _NAME

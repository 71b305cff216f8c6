"""Where models are: the small one that comes with Etude, and those that users name.

Owns `shipped_model`, and `model_at` for one that a user names. A wheel holds the small one inside the package, a clone
beside it, so commands find it in any directory. Loads nothing.
"""

from __future__ import annotations

from pathlib import Path

from etude.errors import ConfigError
from etude.models.files import fault_of

_NAME = "etude-tiny"
_PACKAGE = Path(__file__).parents[1]


def shipped_model() -> Path:
    """The checkpoint's directory."""
    in_wheel = _PACKAGE / "shipped" / _NAME
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / "models" / _NAME


def model_at(directory: Path) -> Path:
    """The same directory, where it is a checkpoint's. Raises ConfigError: it is the user who has named it."""
    if fault := fault_of(directory):
        raise ConfigError(fault)
    return directory

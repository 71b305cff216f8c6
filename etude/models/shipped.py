"""Where models are: the small one that comes with Etude, and those that users name.

Owns `shipped_model`, and `model_at` for one that a user names. Loads nothing.
"""

from __future__ import annotations

from pathlib import Path

from etude.errors import ConfigError
from etude.host.shipped import shipped_at
from etude.models.files import fault_of


def shipped_model() -> Path:
    """The checkpoint's directory."""
    return shipped_at("etude-tiny")


def model_at(directory: Path) -> Path:
    """The same directory, where it is a checkpoint's. Raises ConfigError: it is the user who has named it."""
    if fault := fault_of(directory):
        raise ConfigError(fault)
    return directory

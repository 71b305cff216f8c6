"""What a directory or a file was made by, so that a command goes on only with what it would have made itself.

Owns `claim`, `require_same` and `alone`. A run's own recipe may change in part while it goes on: `rollouts.claim` sees
to that.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etude.config import Config
from etude.durable import write_whole
from etude.errors import ConfigError
from etude.host.lock import handle_of, hold


def require_same(path: Path, made: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises ConfigError where what lies at `path` was made otherwise than is asked now; it names the keys."""
    if other := [key for key in {**made, **asked} if made.get(key) != asked.get(key)]:
        raise ConfigError(
            f"{path}: was made with another `{'`, `'.join(other)}`; give another --out, or remove it to make it anew"
        )


def claim(config: Config, directory: Path) -> None:
    """A directory belongs to the first recipe that ran there."""
    path, asked = directory / "recipe.json", config.model_dump(mode="json")
    if path.exists():
        try:
            made = dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            made = {}
        require_same(directory, made, asked)
    else:
        write_whole(path, f"{json.dumps(asked, indent=2)}\n".encode())


@contextmanager
def alone(directory: Path) -> Generator[None]:
    """Be the only process that makes what is in a directory. Raises ConfigError where another is at it."""
    directory.mkdir(parents=True, exist_ok=True)
    with handle_of(directory) as handle:
        try:
            hold(handle)
        except BlockingIOError as error:
            raise ConfigError(
                f"{directory}: another command writes there ({error.strerror}); wait for it, or give another --out"
            ) from None
        yield

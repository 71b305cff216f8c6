"""Files of one JSON object a line that others wrote: read with the place of every line, for errors that name it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.errors import ConfigError


def parsed(text: str) -> Any:
    """What JSON says. Raises ValueError, also for halves of characters, which no file can hold, and RecursionError."""
    said = json.loads(text)
    json.dumps(said, ensure_ascii=False).encode()
    return said


def read_objects(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) of every line that is not blank. Raises ConfigError, which says what is `wanted` of a line.
    A pipe nobody writes to would be waited for, and a device has no end."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file; write its lines into one")
    try:
        # not `splitlines`: JSON may hold some characters that part lines as they are, such as U+2028
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            said = parsed(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}; {wanted}") from None
        if not isinstance(said, dict):
            raise ConfigError(f"{where}: {wanted}")
        yield where, said

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
    """(where, object) of every line that is not blank. Raises ConfigError, which says what is `wanted` of a line."""
    for where, said in read_lines(path, wanted):
        if isinstance(said, ConfigError):
            raise said
        yield where, said


def read_lines(path: Path, wanted: str) -> Iterator[tuple[str, dict[str, Any] | ConfigError]]:
    """The same, with what is wrong with a line in its place. Raises ConfigError for a file that cannot be read.
    A pipe nobody writes to would be waited for, and a device has no end."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file; write its lines into one")
    try:
        # not `splitlines`: JSON may hold some characters that part lines as they are, such as U+2028
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        if line.strip():
            yield where, _object(line, where, wanted)


def _object(line: str, where: str, wanted: str) -> dict[str, Any] | ConfigError:
    try:
        said = parsed(line)
    except (ValueError, RecursionError) as error:
        return ConfigError(f"{where}: not JSON: {error}; {wanted}")
    return said if isinstance(said, dict) else ConfigError(f"{where}: {wanted}")

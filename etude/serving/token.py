"""The token of a server: a file that only its owner can read, made by the server and read by its clients."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from etude.durable import write_new
from etude.errors import ConfigError


def own_token(path: Path) -> str:
    """The server's token, made when there is none yet. Raises ConfigError where others could have read or made it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # somebody was faster
            write_new(path, f"{secrets.token_urlsafe(32)}\n".encode())
    owner, token = _read(path)
    if owner != os.geteuid():
        raise ConfigError(f"token_file: {path} is another user's, who knows what is in it; make one of your own")
    return token


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read: of root's clients, another user's server may own it."""
    return _read(path)[1]


def _read(path: Path) -> tuple[int, str]:
    """Of one and the same file its owner and the token."""
    try:
        with path.open() as file:
            status, token = os.fstat(file.fileno()), file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"token_file: {path}: {error.strerror}; a server writes it when it is first started"
        ) from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"token_file: others can read {path}: chmod 600 it, and replace the token in it")
    if len(token) < 16 or not token.isascii():
        raise ConfigError(f"token_file: {path} holds no token of at least 16 characters")
    return status.st_uid, token

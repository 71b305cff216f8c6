"""Opens the weight store that a URL names, through the relay of its site where the config names one.

Owns `open_store` and `is_local`. Reads and writes nothing: that is `store`'s, and `relayed`'s.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import obstore
from obstore import exceptions as failures
from obstore.store import LocalStore, MemoryStore, from_url

from etude.deadlines import scaled
from etude.errors import WeightError
from etude.weights.relayed import RelayedStore
from etude.weights.store import PATIENCE, Patience, Store, StoreConfig, first_line


def open_store(url: str | Path, config: StoreConfig | None = None, patience: Patience = PATIENCE) -> Store:
    """Open a directory (a path or file://, made if absent), memory://, or what obstore knows: s3://, gs://, az://, …

    Raises WeightError if it cannot be opened.
    """
    config, text = config or StoreConfig(), str(url)
    try:
        opened = _opened(text, config, patience)
    except (failures.BaseError, OSError, ValueError) as error:
        raise WeightError(f"weight store {text} cannot be opened: {first_line(error)}") from None
    return (Store if config.relay is None else RelayedStore)(*opened, config, patience)


def is_local(url: str) -> bool:
    """Whether it names a directory or this process's memory, which take no options."""
    return urlparse(url).scheme in ("", "file", "memory")


def _opened(text: str, config: StoreConfig, patience: Patience) -> tuple[obstore.store.ObjectStore, str, Path | None]:
    """What obstore makes of a URL, what the store is called, and its directory if it is one."""
    parsed = urlparse(text)
    if parsed.scheme in ("", "file"):
        directory = Path(unquote(parsed.path) if parsed.scheme else text).expanduser().absolute()
        return LocalStore(prefix=directory, mkdir=True), str(directory), directory
    if parsed.scheme == "memory":
        return MemoryStore(), text, None
    silence = timedelta(seconds=scaled(patience.silence_s))
    settings: dict[str, Any] = {
        "config": config.options,
        "client_options": {
            "allow_http": any(value.startswith("http://") for value in config.options.values()),
            "connect_timeout": silence,
            "read_timeout": silence,  # a connection that is silent is given up before one that is slow
            "timeout": timedelta(seconds=scaled(max(patience.deadline_s, patience.silence_s))),
        },
        "retry_config": {"max_retries": 0},  # one place retries, and it is `Store`
    }
    return from_url(text, **settings), text, None

"""A store that is read through the relay of its site.

Owns the choice between the two: the relay, as long as it answers; the store itself, when it does not, and for writing.
A relay that says that the store is silent is believed, for the site has one link. A relay that refuses its token is an
error, for it would never be used. What comes through a relay is checked like what comes from the store; an object that
came damaged is asked for anew, past what the relay has kept. Talks to: store.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from obstore.store import HTTPStore

from etude.deadlines import scaled
from etude.errors import ConfigError, DeadlineExceeded
from etude.serving.token import read_token
from etude.weights.store import Patience, Store, StoreConfig

T = TypeVar("T")
_CONNECT_S = 2.0
_RETRY_S = 1.0
"""How long a relay that answers with an error is asked again."""
_SHUN_S = 15.0
"""How long a relay that failed is left alone."""
_STORE_SILENT = "504 Gateway Timeout"
_MOST_LISTING_BYTES = 64 << 20


class RelayedStore(Store):
    """`counters`: relay_reads (answered by the relay), relay_detours (it did not answer, and the store was read),
    detour_bytes (that came so)."""

    def __init__(self, backend: Any, url: str, directory: Path | None, config: StoreConfig, patience: Patience) -> None:
        super().__init__(backend, url, directory, config, patience)
        self.counters: Counter[str] = Counter()
        self._relay = _open_relay(config, patience)
        self._shunned_until = 0.0

    def get(self, key: str, most_bytes: int, *, again: bool = False) -> bytes:
        kept = "again/objects" if again else "objects"
        return self._through(
            lambda: self._relay.get(f"{kept}/{key}", most_bytes), lambda: Store.get(self, key, most_bytes)
        )

    def get_range(self, key: str, start: int, stop: int, size: int, *, again: bool = False) -> memoryview:
        kept = f"again/ranges/{size}" if again else f"ranges/{size}"
        return self._through(
            lambda: self._relay.get_range(f"{kept}/{key}", start, stop, size),
            lambda: Store.get_range(self, key, start, stop, size),
        )

    def stamp(self, key: str) -> tuple[int, str | None]:
        return self._through(lambda: self._relay.stamp(f"objects/{key}"), lambda: Store.stamp(self, key))

    def list(self, prefix: str) -> dict[str, int]:
        listed = f"lists/{prefix.rstrip('/')}"
        return self._through(
            lambda: json.loads(self._relay.get(listed, _MOST_LISTING_BYTES)), lambda: Store.list(self, prefix)
        )

    def _through(self, relayed: Callable[[], T], direct: Callable[[], T]) -> T:
        if time.monotonic() >= self._shunned_until:
            try:
                found = relayed()
            except DeadlineExceeded as error:
                if _STORE_SILENT in str(error):
                    raise
                self._shunned_until = time.monotonic() + _SHUN_S
            else:
                self.counters["relay_reads"] += 1
                return found
        self.counters["relay_detours"] += 1
        found = direct()
        if isinstance(found, bytes | memoryview):
            self.counters["detour_bytes"] += len(found)
        return found


def _open_relay(config: StoreConfig, patience: Patience) -> Store:
    """The relay as a store of its own, which is given up soon when it is down, and late while it fetches."""
    if config.relay is None or config.token_file is None:
        raise ConfigError("weight_store.token_file: a relay is used with its token; name the file that holds it")
    longest = timedelta(seconds=scaled(patience.deadline_s + patience.silence_s))
    backend = HTTPStore(
        config.relay,
        client_options={
            "allow_http": True,
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "read_timeout": longest,
            "timeout": longest,
            "default_headers": {"authorization": f"Bearer {read_token(config.token_file)}"},
        },
        retry_config={"max_retries": 0},
    )
    return Store(backend, f"relay {config.relay}", None, config, Patience(_RETRY_S))

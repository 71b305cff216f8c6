"""How the product searches: by the user's own embedder, without secrets in what leaves this machine.

Owns `embedder_of`, and `push` and `fetch`, which put an index that a team shares where a URL says. The ranking and the
form of what is pushed are `etude.search`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from etude.errors import MissingDependency
from etude.extras import install_command
from etude.harness.secrets.environment import known_secrets
from etude.harness.secrets.redact import unmarked
from etude.product.config import search_config
from etude.search import sharing
from etude.search.embedder import Embedder
from etude.search.others import SearchConfig
from etude.search.store import Store
from etude.search.workspace import Built


def embedder_of(config: SearchConfig, secrets: Collection[str] = ()) -> Embedder:
    """What `[search]` names; `secrets` are values to be taken out beside what is found."""
    return config.embedder(_redacting(secrets))


def own_embedder() -> Embedder:
    """As the user's agent.toml has it."""
    return embedder_of(search_config())


def push(
    directory: Path, store: Store, url: str, options: dict[str, str], said: Callable[[str], None]
) -> sharing.Pushed:
    """See `search.sharing`."""
    redacted = _redacting()
    return sharing.push(
        directory, store, _objects(url, options), lambda text: redacted(text) == text, said, own_embedder()
    )


def fetch(
    directory: Path, store: Store, url: str, options: dict[str, str], said: Callable[[str], None],
    on_read: Callable[[int, int], None],
) -> Built:  # fmt: skip
    """See `search.sharing`."""
    return sharing.fetch(directory, store, _objects(url, options), said, on_read, own_embedder())


def _redacting(secrets: Collection[str] = ()) -> Callable[[str], str]:
    return partial(unmarked, known=known_secrets(os.environ, secrets))


def _objects(url: str, options: dict[str, str]) -> sharing.Objects:
    try:
        from etude.weights.opening import open_store
        from etude.weights.store import StoreConfig
    except ImportError:
        raise MissingDependency(f"an index is shared with obstore: {install_command('train')}") from None
    return open_store(url, StoreConfig(options=options))

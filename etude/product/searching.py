"""How the product searches: by the user's own embedder, without secrets in what leaves this machine.

Owns `embedder_of`, and `push` and `fetch`, which put an index that a team shares where a URL says. The ranking and the
form of what is pushed are `etude.search`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from etude.errors import ConfigError, DeadlineExceeded, MissingDependency
from etude.extras import install_command
from etude.harness.secrets.environment import known_secrets
from etude.harness.secrets.redact import unmarked
from etude.product.config import search_config
from etude.search import sharing
from etude.search.embedder import Embedder
from etude.search.others import SearchConfig
from etude.search.store import Store
from etude.search.workspace import Built

_KEYS = ("access_key", "web_identity", "container_", "skip_signature", "token")
"""What names of options and of variables begin with that say who asks S3, after `aws_`."""


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
        directory, store, _objects(url, options, makes=True), lambda text: redacted(text) == text, said, own_embedder()
    )


def fetch(
    directory: Path, store: Store, url: str, options: dict[str, str], said: Callable[[str], None],
    on_read: Callable[[int, int], None],
) -> Built:  # fmt: skip
    """See `search.sharing`."""
    return sharing.fetch(directory, store, _objects(url, options, makes=False), said, on_read, own_embedder())


def _redacting(secrets: Collection[str] = ()) -> Callable[[str], str]:
    return partial(unmarked, known=known_secrets(os.environ, secrets))


def _objects(url: str, options: dict[str, str], *, makes: bool) -> sharing.Objects:
    """The store that a URL names; a directory that is not there only where it `makes` one."""
    try:
        from etude.weights.opening import is_local, open_store
        from etude.weights.store import StoreConfig
    except ImportError:
        raise MissingDependency(f"an index is shared with obstore: {install_command('search')}") from None
    if is_local(url):
        if options:
            raise ConfigError(f"--set {next(iter(options))}: {url} is a directory, which takes no options")
        if not makes and not Path(url.removeprefix("file://")).expanduser().is_dir():
            raise ConfigError(f"{url}: no such directory; `etude index push` makes one")
    _check_keys(url, options)
    return open_store(url, StoreConfig(options=options))


def _check_keys(url: str, options: dict[str, str]) -> None:
    """Raise ConfigError where nobody gives a key for S3. Without one this machine's cloud is asked, which may have one:
    elsewhere nobody answers, and that should not take as long as a store that is slow."""
    from etude.weights.opening import open_store
    from etude.weights.store import Patience, StoreConfig

    given = [*options, *(name for name in os.environ if name.startswith("AWS_"))]
    if not url.startswith("s3") or any(name.lower().removeprefix("aws_").startswith(_KEYS) for name in given):
        return
    try:
        open_store(url, StoreConfig(options=options), Patience(deadline_s=4.0, silence_s=2.0)).exists("index/none")
    except DeadlineExceeded:
        raise ConfigError(
            f"{url}: there are no credentials: export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --set "
            "skip_signature=true where anybody may read"
        ) from None

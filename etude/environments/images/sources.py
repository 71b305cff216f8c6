"""Adding an image from whatever a user names: a directory, an OCI layout or a tar of one, or a Debian suite.

Owns telling them apart. Dockerfiles are `build`'s, since their steps run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etude.environments.images.debian import add_debian
from etude.environments.images.oci import add_oci
from etude.environments.images.store import Image, ImageStore
from etude.errors import ConfigError

DEBIAN = "debian:"


def add_image(
    store: ImageStore,
    source: str,
    *,
    name: str | None = None,
    packages: Sequence[str] = (),
    reference: str | None = None,
) -> Image:
    """`source` is `debian:SUITE` (with `packages`), or a path; of an OCI layout, `reference` chooses the image."""
    if packages and not source.startswith(DEBIAN):
        raise ConfigError(f"packages: {source} is no {DEBIAN}SUITE, which alone takes packages")
    path = Path(source)
    is_layout = (path / "index.json").is_file() and (path / "oci-layout").is_file()
    if reference is not None and not is_layout and not path.is_file():
        raise ConfigError(f"reference: {source} is no OCI layout, which alone holds several images")
    if source.startswith(DEBIAN):
        return add_debian(store, source.removeprefix(DEBIAN), packages, name=name)
    if is_layout or path.is_file():
        return add_oci(store, path, reference=reference, name=name)
    return store.add_directory(path, name=name)

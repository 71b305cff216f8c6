"""Whether this machine can keep and mount images, by making one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etude.environments.build import default_cache_dir, guest_program
from etude.environments.images.mounts import Mounts
from etude.environments.images.store import ImageStore

if TYPE_CHECKING:
    from etude.environments.namespace import NamespaceConfig


def check_images(config: NamespaceConfig, work: Path) -> None:
    """Keep a tiny image in the empty directory `work` and mount it. Raises an EtudeError that says what is missing."""
    for name in ("tree", "mounts"):
        (work / name).mkdir()
    store = ImageStore(config.images.model_copy(update={"dir": work / "images"}))
    image = store.add_directory(work / "tree")
    mounts = Mounts(guest_program(default_cache_dir()), work / "mounts")
    try:
        if image.path.is_file():
            mounts.erofs(image.path)
    finally:
        mounts.close()

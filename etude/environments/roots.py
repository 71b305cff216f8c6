"""What the default backend knows of images: where they are kept, and what it is handed when a sandbox starts on one.

Owns the config, the protocols `Roots` and `Root`, and the one place that finds who has images: the entry point `store`
of the group `etude.images`. The store of images, their builder and their mounts are in `images/`, which this never
imports; without an image none of it is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from etude.config import Config
from etude.deadlines import Wait
from etude.plugins import find

HOST = "host"
"""The image that is none: the host's own toolchain."""


class ImagesConfig(Config):
    """Where images are kept, and in which form new ones are."""

    dir: Path | None = None
    """A local directory of a file system that can map owners (ext4, xfs, btrfs, tmpfs); None: below XDG_DATA_HOME."""
    format: Literal["erofs", "directory"] = "erofs"
    """`directory` for kernels that mount no erofs files (before Linux 6.12); VMs need `erofs`."""
    write_timeout_s: ClassVar[Wait] = Wait(1800.0)
    """For writing one image, of tens of gigabytes."""
    gc_timeout_s: ClassVar[Wait] = Wait(60.0)
    """How long `gc` waits for images being added or built."""


class Root(Protocol):
    """An image as a sandbox's /."""

    @property
    def mounts(self) -> str:
        """The mount namespace in which it is mounted."""
        ...

    @property
    def building(self) -> bool:
        """Whether all of it is writable, for a step of an image's build."""
        ...

    @property
    def workspace(self) -> str:
        """The directory of the image that agents work in."""
        ...

    @property
    def owner(self) -> tuple[int, int]:
        """Whose the top of the writable overlay is, as seen inside."""
        ...

    @property
    def isolation(self) -> list[str]:
        """bubblewrap's part: who the user is, and what it may do."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Of every command."""
        ...

    def lowers(self, layers: Sequence[str]) -> list[str]:
        """What the writable overlay stands on."""
        ...

    def launch(self, directory: Path, first: int, shown: Sequence[str]) -> list[str]:
        """The launcher's part; see `images.root`."""
        ...


class Roots(Protocol):
    """Images made ready for the sandboxes of one backend; used from any thread."""

    def find(self, image: str) -> Root:
        """An agent's root on an image, by name or id. Raises ConfigError when it is not there."""
        ...

    def on(self, trees: Sequence[Path], root: Root) -> Root:
        """`root` over these trees. The caller keeps them from being collected."""
        ...

    def check(self, tree: Path) -> None:
        """Keep a directory as an image and mount it. Raises an EtudeError that says what is missing."""
        ...

    def close(self) -> None: ...


def open_roots(program: Path, directory: Path, config: ImagesConfig, targets: Sequence[str]) -> Roots:
    """What a backend has below `directory` of images; `targets` are where its sandboxes see further directories."""
    return find("images", "store")(program, directory, config, targets)

"""Images made ready for one backend's sandboxes: found in the image store, mounted once, held until the backend closes.

Owns the mounts of a backend and its claim on the images it uses, so that no collection takes them away. Hands out
`Root`s; starts nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from etude.environments.images.confined import Confined
from etude.environments.images.mounts import Mounts
from etude.environments.images.root import Root, check_points, make_points
from etude.environments.images.store import ImageStore
from etude.environments.roots import ImagesConfig


class Roots:
    """Used from any thread. Opens the image store, and starts the process that holds mounts, at the first image."""

    def __init__(self, program: Path, directory: Path, config: ImagesConfig, targets: Sequence[str]) -> None:
        self._program = program
        self._directory = directory
        self._config = config
        self._targets = targets  # where further directories are shown inside
        self._lock = threading.Lock()
        self._mounts: Mounts | None = None
        self._mounted: dict[Path, Path] = {}
        self._found: dict[str, Root] = {}
        self._held = contextlib.ExitStack()

    def find(self, image: str) -> Root:
        """An agent's root on an image of the store, by name or id. Raises ConfigError when it is not there."""
        with self._lock:
            store = ImageStore(self._config)
            found = store.get(image)
            if found.id not in self._found:
                self._held.enter_context(store.using(found))
                tree = self._mount(found.path)
                check_points(Confined(self._open().seen(tree)), self._targets)
                self._found[found.id] = Root(
                    trees=(tree,),
                    mounts=self._open().namespace,
                    uid=found.uid,
                    gid=found.gid,
                    env=found.env,
                    workspace=found.workspace,
                    has_workspace=found.has_workspace,
                )
            return self._found[found.id]

    def on(self, trees: Sequence[Path], root: Root) -> Root:
        """`root` over these trees, each an erofs file or a directory. The caller keeps them from being collected."""
        with self._lock:
            mounted = tuple(self._mount(tree) for tree in trees)
            return replace(root, trees=mounted, mounts=self._open().namespace)

    def check(self, tree: Path) -> None:
        """Keep the directory `tree` as an image and mount it. Raises an EtudeError that says what is missing."""
        image = ImageStore(self._config).add_directory(tree)
        with self._lock:
            self._open()
            self._mount(image.path)

    def close(self) -> None:
        with self._lock:
            self._held.close()
            if self._mounts is not None:
                self._mounts.close()
                self._mounts = None

    def _open(self) -> Mounts:
        if self._mounts is None:
            make_points(self._directory, self._targets)
            self._mounts = Mounts(self._program, self._directory)
        return self._mounts

    def _mount(self, tree: Path) -> Path:
        if tree.is_dir():
            return tree
        if tree not in self._mounted:
            self._mounted[tree] = self._open().erofs(tree)
        return self._mounted[tree]

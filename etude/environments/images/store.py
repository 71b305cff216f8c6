"""The image store: file trees kept once each, by digest, and the names images go by.

Owns one local directory, which any number of processes may use at once:

    trees/DIGEST.erofs   a tree as the one artefact that namespaces mount and VMs attach; or, where the config says
    trees/DIGEST/        `directory`, as files
    images/ID.json       an image: its tree, and what its makers said of environment, user and command
    names/NAME           holds the id this name stands for
    layers/KEY/          what one step of a build changed (see `build`); KEY.json beside it
    new/                 what is being written; it takes its place whole or not at all

An image's id is the digest of its tree and of what is said of it. Nothing is ever changed in place. `gc` removes what
no name, no build that a kept image came from, and no living process refers to. Keeping the trees' owners takes root.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from etude.durable import naming
from etude.environments.base import WORKSPACE
from etude.environments.images.artefact import write_directory, write_erofs
from etude.environments.images.confined import Confined
from etude.environments.images.tree import digest_tree
from etude.environments.images.users import resolve_user
from etude.environments.roots import ImagesConfig
from etude.environments.trees import remove_tree
from etude.errors import ConfigError, DeadlineExceeded
from etude.host.lock import share, try_hold, wait_for

_WRITERS = {"erofs": write_erofs, "directory": write_directory}


@dataclass(frozen=True)
class Described:
    """What an image's makers said of it, beside its files."""

    env: tuple[tuple[str, str], ...] = ()
    workdir: str = "/"
    user: str = ""
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    exposed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """An image of the store. `path` is its erofs file or its directory; `env` and the like are as declared."""

    id: str
    path: Path
    tree: str
    """The digest of its files."""
    described: Described
    uid: int
    gid: int
    """`user`, in the image's own numbers."""
    workspace: str
    """The directory agents work in: the image's working directory with no symlink in it, or /workspace."""
    has_workspace: bool
    size: int

    @property
    def env(self) -> dict[str, str]:
        return dict(self.described.env)

    @property
    def workdir(self) -> str:
        return self.described.workdir

    @property
    def user(self) -> str:
        return self.described.user

    @property
    def cmd(self) -> tuple[str, ...]:
        return self.described.cmd


@dataclass
class Removed:
    """What a collection removed."""

    images: list[str] = field(default_factory=list)
    layers: int = 0
    unfinished: int = 0


class ImageStore:
    """See the head of this module. Methods block: they copy and hash files."""

    def __init__(self, config: ImagesConfig | None = None) -> None:
        self.config = config or ImagesConfig()
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        self.root = (self.config.dir or data / "etude" / "images").absolute()
        if os.geteuid() != 0:
            raise ConfigError("images: only root can keep the owners of an image's files; run as root")
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)  # images hold setuid programs; nobody else of this host may reach them
        for name in ("trees", "images", "names", "layers", "new"):
            (self.root / name).mkdir(exist_ok=True)

    # --- adding -------------------------------------------------------------------------------------------------------

    def add_directory(self, source: Path, described: Described | None = None, name: str | None = None) -> Image:
        """Add a root file system as it lies in `source`, which nothing may be changing."""
        if not source.is_dir():
            raise ConfigError(f"{source}: not a directory")
        with self.writing():
            return self.keep_tree(source, described or Described(), name)

    def keep_tree(
        self, source: Path, described: Described, name: str | None = None, layers: Sequence[str] = ()
    ) -> Image:
        """Add a tree and what is said of it; `layers` are the steps of the build it came from, kept while it is.

        For sources of images; the caller is inside `writing`.
        """
        info = digest_tree(source)
        if not self._tree_path(info.digest).exists():
            self._write_tree(source, info.digest)
        tree = Confined(source)
        uid, gid = resolve_user(tree, described.user)
        workspace, has_workspace = _workspace(tree, described.workdir)
        facts = {"tree": info.digest, "described": asdict(described)}
        image_id = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        record = facts | {
            "uid": uid, "gid": gid, "workspace": workspace, "has_workspace": has_workspace, "size": info.size,
            "layers": list(layers),
        }  # fmt: skip
        with self.new() as partial:
            (partial / "image").write_text(json.dumps(record, sort_keys=True))
            _replace(partial / "image", self.root / "images" / f"{image_id}.json")
        if name is not None:
            self.name(image_id, name)
        return self.get(image_id)

    def name(self, image_id: str, name: str) -> None:
        """Let `name` stand for an image, also where it stood for another."""
        if not name or len(quote(name, safe="")) > 200:
            raise ConfigError(f"name: {name!r} is no name for an image")
        self._read(image_id)
        with self.new() as partial:
            (partial / "name").write_text(image_id)
            _replace(partial / "name", self.root / "names" / quote(name, safe=""))

    def unname(self, name: str) -> None:
        (self.root / "names" / quote(name, safe="")).unlink(missing_ok=True)

    @contextlib.contextmanager
    def new(self) -> Generator[Path]:
        """A directory of the store to write in, gone afterwards with what has not found its place."""
        path = Path(tempfile.mkdtemp(dir=self.root / "new"))
        try:
            with naming(self.root):
                yield path
        finally:
            remove_tree(path)

    @contextlib.contextmanager
    def writing(self) -> Generator[None]:
        """Held while something is added, so that nothing is collected under the writer's hands."""
        with (self.root / "lock").open("a") as lock:
            share(lock.fileno())
            yield

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, image: str) -> Image:
        """An image by name or id. Raises ConfigError, saying how to import one, when it is not here."""
        path = self.root / "names" / quote(image, safe="")
        image_id = path.read_text() if path.is_file() else image
        record = self._read(image_id)
        record.pop("layers")
        described = Described(**{key: _frozen(value) for key, value in record.pop("described").items()})
        tree = self._tree_path(record["tree"])
        if not tree.exists():
            raise ConfigError(
                f"image {image}: is not kept in the form {self.config.format!r}; add it again in that form"
            )
        return Image(id=image_id, path=tree, described=described, **record)

    def names(self) -> dict[str, str]:
        """Every name, and the id it stands for."""
        return {unquote(path.name): path.read_text() for path in sorted((self.root / "names").iterdir())}

    def images(self) -> list[Image]:
        """Every image kept in the form the config asks for."""
        records = ((path.stem, self._read(path.stem)) for path in sorted((self.root / "images").glob("*.json")))
        return [self.get(image_id) for image_id, record in records if self._tree_path(record["tree"]).exists()]

    @contextlib.contextmanager
    def using(self, image: Image) -> Generator[None]:
        """Held while sandboxes stand on an image: `gc` in any process leaves its files alone."""
        gone = ConfigError(f"image {image.id}: was removed just now; add it again")
        try:
            held = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise gone from None
        try:
            share(held)
            if not image.path.exists():
                raise gone
            yield
        finally:
            os.close(held)

    # --- collecting ---------------------------------------------------------------------------------------------------

    def gc(self) -> Removed:
        """Remove images without a name that no living process uses, then trees and layers that no image needs."""
        removed = Removed()
        with (self.root / "lock").open("a") as lock:
            if not wait_for(lock.fileno(), self.config.gc_timeout_s):
                late = "images being added or built", self.config.gc_timeout_s, "collect when they are done"
                raise DeadlineExceeded(*late)
            named = set(self.names().values())
            for path in sorted((self.root / "images").glob("*.json")):
                if path.stem not in named and _unused(self._tree_path(self._read(path.stem)["tree"])):
                    path.unlink()
                    removed.images.append(path.stem)
            records = [self._read(path.stem) for path in (self.root / "images").glob("*.json")]
            trees = {record["tree"] for record in records}
            for path in (self.root / "trees").iterdir():
                if path.name.removesuffix(".erofs") not in trees and _unused(path):
                    _remove(path)
            layers = {key for record in records for key in record["layers"]}
            for path in (self.root / "layers").iterdir():
                if path.name.removesuffix(".json") not in layers:
                    removed.layers += path.is_dir()
                    _remove(path)
            for path in (self.root / "new").iterdir():
                removed.unfinished += 1
                _remove(path)
        return removed

    # ------------------------------------------------------------------------------------------------------------------

    def _read(self, image_id: str) -> dict[str, Any]:
        path = self.root / "images" / f"{quote(image_id, safe='')}.json"
        if not path.is_file():
            known = ", ".join(self.names()) or "none yet"
            raise ConfigError(
                f"image {image_id!r}: not in {self.root} (known names: {known}); import it with "
                f"`etude images add SOURCE --name {image_id}`: a directory, an OCI layout or tar, or "
                "debian:SUITE"
            )
        return json.loads(path.read_text())

    def _tree_path(self, digest: str) -> Path:
        """In the form the config asks for, and no other: which it is decides who can use it."""
        return self.root / "trees" / (f"{digest}.erofs" if self.config.format == "erofs" else digest)

    def _write_tree(self, source: Path, digest: str) -> None:
        with self.new() as partial:
            _WRITERS[self.config.format](source, partial / "tree", self.config.write_timeout_s)
            settle(partial / "tree", self._tree_path(digest))


def _workspace(tree: Confined, workdir: str) -> tuple[str, bool]:
    """Where an image's agents work, and whether it is there already. The image's root is nobody's workspace."""
    place = tree.resolve(workdir)
    inside = tree.inside(place)
    if inside == "/" or inside == WORKSPACE or inside.startswith(f"{WORKSPACE}/"):
        place, inside = tree.resolve(WORKSPACE), tree.inside(tree.resolve(WORKSPACE))
    return inside, place.is_dir()


def _replace(partial: Path, place: Path) -> None:
    """Give a finished file its name, on disk before anybody can see it."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(place)


def settle(partial: Path, place: Path) -> Path:
    """Give finished content the name of its digest. Where somebody was faster with the same, theirs stays."""
    if partial.is_file():
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(partial, place)
    else:
        try:
            partial.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    return place


def _unused(tree: Path) -> bool:
    if not tree.exists():
        return True
    held = os.open(tree, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return try_hold(held)
    finally:
        os.close(held)


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink()


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value

"""Images from an OCI layout, a directory or a tar of one, such as `skopeo copy` and `docker save` write.

Owns the walk from index.json through manifest and config to the layers, each checked against its digest before it is
used, each layer a second time unpacked, and the choice of this machine's platform. Unpacking is `archives`'.
Source: the OCI image specification, version 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from etude.environments.images.archives import decompressed, extract
from etude.environments.images.confined import Confined
from etude.environments.images.store import Described, Image, ImageStore
from etude.errors import ConfigError

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_JSON_MAX = 16 << 20
_INDEX_DEPTH = 4
_REFERENCE = "org.opencontainers.image.ref.name"
_LAYER_TYPES = re.compile(
    r"application/vnd\.(oci\.image\.layer\.v1|docker\.image\.rootfs\.diff)\.tar([.+](gzip|zstd))?"
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def add_oci(store: ImageStore, source: Path, *, reference: str | None = None, name: str | None = None) -> Image:
    """Add the layout's image for this machine. `reference` chooses where it holds several; see `skopeo inspect`.

    Raises ConfigError for a layout that is not whole: nothing of it is kept then.
    """
    with _open(source) as layout, store.writing(), store.new() as partial:
        manifest = layout.manifest(reference)
        config = layout.json(_part(manifest, "config", dict, "manifest"), "the image's config")
        _check_platform(config, source)
        tree = partial / "tree"
        tree.mkdir()
        tree.chmod(0o755)
        layers = _part(manifest, "layers", list, "manifest")
        whole = _part(_part(config, "rootfs", dict, "config"), "diff_ids", list, "config")
        if len(layers) != len(whole):
            raise ConfigError(f"{source}: {len(layers)} layers, but the config knows {len(whole)}")
        for layer, diff_id in zip(layers, whole, strict=True):
            layout.unpack(layer, diff_id, Confined(tree))
        return store.keep_tree(tree, _described(config), name)


class _Layout:
    """A layout's blobs, and nothing of it that is not a blob or index.json."""

    def __init__(self, source: Path, archive: tarfile.TarFile | None) -> None:
        self._source = source
        self._archive = archive

    def manifest(self, reference: str | None) -> dict[str, Any]:
        try:
            with self._file("index.json") as file:
                index = _parse(file.read(_JSON_MAX), f"{self._source}: index.json")
        except FileNotFoundError:
            raise ConfigError(f"{self._source}: no index.json in it, so it is no OCI layout") from None
        for _ in range(_INDEX_DEPTH):
            chosen = self._choose(_part(index, "manifests", list, "index"), reference)
            index = self.json(chosen, "a manifest")
            if "manifests" not in index:
                return index
            reference = None  # it named the outer one
        raise ConfigError(f"{self._source}: indexes nested more than {_INDEX_DEPTH} deep")

    def json(self, descriptor: dict[str, Any], what: str) -> dict[str, Any]:
        with self._blob(descriptor, what) as file:
            if descriptor["size"] > _JSON_MAX:
                raise ConfigError(f"{self._source}: {what} of {descriptor['size']} bytes is none")
            return _parse(file.read(), f"{self._source}: {what}")

    def unpack(self, descriptor: dict[str, Any], diff_id: object, tree: Confined) -> None:
        kind = str(descriptor.get("mediaType"))
        if not _LAYER_TYPES.fullmatch(kind):
            raise ConfigError(f"{self._source}: a layer of type {kind}; tar, plain or as gzip or zstd, can be read")
        with self._blob(descriptor, "a layer") as file, decompressed(file) as plain:
            hashing = _Hashing(plain)
            extract(cast("IO[bytes]", hashing), tree, layer=True)
        if f"sha256:{hashing.digest.hexdigest()}" != diff_id:
            raise ConfigError(f"{self._source}: layer {descriptor['digest']} unpacks to other content than it should")

    def _choose(self, manifests: list[Any], reference: str | None) -> dict[str, Any]:
        candidates = [each for each in manifests if isinstance(each, dict) and _for_this_machine(each)]
        if reference is not None:
            candidates = [each for each in candidates if (each.get("annotations") or {}).get(_REFERENCE) == reference]
        if len({each.get("digest") for each in candidates}) == 1:
            return candidates[0]
        names = sorted({str((each.get("annotations") or {}).get(_REFERENCE)) for each in manifests})
        said = "several images" if candidates else "no image"
        wanted = f" called {reference!r}" if reference is not None else ""
        raise ConfigError(
            f"{self._source}: {said} for linux/{_machine()}{wanted}; name one as reference, of {', '.join(names)}"
        )

    @contextlib.contextmanager
    def _blob(self, descriptor: dict[str, Any], what: str) -> Generator[BinaryIO]:
        """A blob whose digest and size are as the descriptor says."""
        match = _DIGEST.fullmatch(str(descriptor.get("digest")))
        if match is None:
            raise ConfigError(f"{self._source}: {what} has the digest {descriptor.get('digest')!r}; sha256 is read")
        try:
            with self._file(f"blobs/sha256/{match[1]}") as file:
                digest, size = hashlib.sha256(), 0
                while piece := file.read(1 << 20):
                    digest.update(piece)
                    size += len(piece)
                if digest.hexdigest() != match[1] or size != descriptor.get("size"):
                    raise ConfigError(f"{self._source}: {what}, {match[0]}, is torn or changed; copy the layout again")
                file.seek(0)
                yield file
        except FileNotFoundError:
            raise ConfigError(f"{self._source}: {what}, {match[0]}, is not in the layout; copy all of it") from None

    @contextlib.contextmanager
    def _file(self, path: str) -> Generator[BinaryIO]:
        if self._archive is None:
            with (self._source / path).open("rb") as file:
                yield cast("BinaryIO", file)
            return
        for name in (path, f"./{path}"):
            with contextlib.suppress(KeyError):
                member = self._archive.extractfile(self._archive.getmember(name))
                if member is not None:
                    with member:
                        yield cast("BinaryIO", member)
                    return
        raise FileNotFoundError(path)


class _Hashing:
    """A stream that remembers the digest of what was read of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self.digest.update(piece)
        return piece


@contextlib.contextmanager
def _open(source: Path) -> Generator[_Layout]:
    if source.is_dir():
        yield _Layout(source, None)
        return
    if not source.is_file() or not tarfile.is_tarfile(source):
        raise ConfigError(f"{source}: neither an OCI layout's directory nor a tar of one")
    with tarfile.open(source) as archive:
        yield _Layout(source, archive)


def _described(config: dict[str, Any]) -> Described:
    said = config.get("config") or {}
    env = tuple((name, value) for name, _, value in (str(each).partition("=") for each in said.get("Env") or ()))
    return Described(
        env=env,
        workdir=str(said.get("WorkingDir") or "/"),
        user=str(said.get("User") or ""),
        cmd=tuple(map(str, said.get("Cmd") or ())),
        entrypoint=tuple(map(str, said.get("Entrypoint") or ())),
        labels=tuple(sorted((str(name), str(value)) for name, value in (said.get("Labels") or {}).items())),
        exposed=tuple(sorted(map(str, said.get("ExposedPorts") or ()))),
    )


def _check_platform(config: dict[str, Any], source: Path) -> None:
    if (config.get("os"), config.get("architecture")) != ("linux", _machine()):
        found = f"{config.get('os')}/{config.get('architecture')}"
        raise ConfigError(f"{source}: an image for {found}; this machine runs linux/{_machine()}")


def _for_this_machine(descriptor: dict[str, Any]) -> bool:
    wanted = descriptor.get("platform")
    return not wanted or (wanted.get("os"), wanted.get("architecture")) == ("linux", _machine())


def _machine() -> str:
    return _MACHINES.get(platform.machine(), platform.machine())


def _parse(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{what}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{what}: not an object")
    return found


def _part(of: dict[str, Any], key: str, kind: type, what: str) -> Any:
    value = of.get(key)
    if not isinstance(value, kind):
        raise ConfigError(f"OCI layout: the {what} has no {key!r} ({kind.__name__})")
    return value

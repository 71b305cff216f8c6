"""The object store seam: named blobs in a directory, S3, GCS or Azure, by URL.

Owns retries, deadlines and errors a user can act on. An object appears whole or not at all (in a directory: written
beside its place, then renamed); it survives the death of any process, and the loss of power only as far as the file
system promises without fsync, which is why readers check hashes. Knows nothing of versions (`chain`). Talks to:
obstore.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import obstore
from obstore import exceptions as failures
from pydantic import Field

from etude.config import Config
from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, WeightError

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_LEAST_PART = 5 << 20
"""S3 takes no smaller part of an upload, but for the last."""
_OS_FULL = {28: "the disk is full", 122: "the disk quota is used up"}
_OS_REFUSED = {
    1: "not permitted; make it writable",
    13: "permission denied; make it writable",
    24: "too many files are open; raise the limit, `ulimit -n 65536`",
    30: "the file system is read-only; make it writable",
}
_REFUSED = (
    PermissionError,
    failures.PermissionDeniedError,
    failures.UnauthenticatedError,
    failures.InvalidPathError,
    failures.NotSupportedError,
    failures.UnknownConfigurationKeyError,
    NotImplementedError,
    ValueError,
)


PARALLEL = 8
"""Blocks of one object under way at the same time: one connection seldom fills a link, and eight do."""


@dataclass(frozen=True)
class Patience:
    """How long a store may take, before `[deadlines] scale`."""

    deadline_s: float = 30.0
    """A request that still fails after this long, retries included, is an error: a store that restarts is back."""
    silence_s: float = 15.0
    """A remote store may be silent for so long, and sending it one block may take so long; less than the deadline, so
    that a request is made again at least once."""


PATIENCE = Patience()


class StoreConfig(Config):
    """What a remote store is told, in what pieces it is read and written, and through whom."""

    block_bytes: int = Field(4 << 20, ge=1 << 10)
    """Large objects go in requests of this size, each tried again by itself: less for a slow link."""
    options: dict[str, str] = Field(default_factory=dict)
    """For a remote store, in obstore's terms: region, endpoint, …; credentials come from the usual environment."""
    relay: str | None = None
    """The URL of this site's relay (`etude weights relay`): what is read comes through it, as long as it answers."""
    token_file: Path | None = None
    """The file that holds the relay's token."""

    def idle(self) -> dict[str, str]:
        return {} if self.relay is not None else {"token_file": "without a relay"}


class MissingObject(WeightError):
    """The store has no object of that name."""


class Store:
    """One store, opened by `open_store`. Safe to use from several threads and processes."""

    def __init__(
        self,
        backend: obstore.store.ObjectStore,
        url: str,
        directory: Path | None,
        config: StoreConfig,
        patience: Patience = PATIENCE,
    ) -> None:
        self.url, self.config = url, config
        self.deadline_s = scaled(patience.deadline_s)
        self._backend, self._directory = backend, directory

    def put(self, key: str, data: bytes | bytearray, *, create: bool = False) -> bool:
        """Write an object. With `create`, an object already there is left alone and the answer is False."""

        def write() -> None:
            if create or len(data) <= self.config.block_bytes:
                obstore.put(self._backend, key, data, mode="create" if create else "overwrite", use_multipart=False)
            else:
                size, at_once = max(self.config.block_bytes, _LEAST_PART), PARALLEL
                obstore.put(self._backend, key, data, use_multipart=True, chunk_size=size, max_concurrency=at_once)

        try:
            self._attempt(f"write {key} ({len(data)} bytes)", write)
        except failures.AlreadyExistsError:
            return False
        return True

    def get(self, key: str, most_bytes: int, *, again: bool = False) -> bytes:
        """An object's bytes. Raises MissingObject, or WeightError for one larger than `most_bytes`, unread.

        With `again`, what was kept on the way here is not good enough.
        """

        found = self.get_changed(key, most_bytes, None)
        assert found is not None
        return found[0]

    def get_changed(self, key: str, most_bytes: int, tag: str | None) -> tuple[bytes, str | None] | None:
        """An object's bytes and its tag; None if the tag is still this one. Raises as `get` does."""

        def read() -> tuple[bytes, str | None] | None:
            try:
                answer = obstore.get(self._backend, key, options={"if_none_match": tag} if tag else {})
            except failures.NotModifiedError:
                return None
            if answer.meta["size"] > most_bytes:
                size = answer.meta["size"]
                raise WeightError(f"{self.url}: {key} has {size} bytes, and at most {most_bytes} were expected")
            return bytes(answer.bytes()), answer.meta["e_tag"]

        return self._attempt(f"read {key}", read)

    def get_range(self, key: str, start: int, stop: int, size: int, *, again: bool = False) -> memoryview:
        """Bytes `start` to `stop` of an object that has `size` bytes. Raises MissingObject, or WeightError if it has
        not. `again` as for `get`.
        """

        def read() -> memoryview:
            try:
                answer = obstore.get(self._backend, key, options={"range": (start, stop)})
            except failures.GenericError:
                self._check_size(key, obstore.head(self._backend, key)["size"], size)
                raise
            self._check_size(key, answer.meta["size"], size)
            data = memoryview(answer.bytes())
            if len(data) != stop - start:
                raise failures.GenericError(f"{len(data)} bytes came for {start}:{stop}")
            return data

        return self._attempt(f"read {key}, bytes {start}:{stop}", read)

    def _check_size(self, key: str, found: int, size: int) -> None:
        if found < size:
            raise WeightError(f"{self.url}: {key} is cut off: {found} of {size} bytes; restore it")
        if found > size:
            raise WeightError(f"{self.url}: {key} has {found} bytes, and at most {size} were expected")

    def exists(self, key: str) -> bool:
        try:
            self.stamp(key)
        except MissingObject:
            return False
        return True

    def stamp(self, key: str) -> tuple[int, str | None]:
        """An object's size, and a tag that is another one when the object is; raises MissingObject."""
        found = self._attempt(f"look up {key}", lambda: obstore.head(self._backend, key))
        return found["size"], found["e_tag"]

    def list(self, prefix: str) -> dict[str, int]:
        """Keys under `prefix`, which ends in a slash, with their sizes."""

        def read() -> dict[str, int]:
            pages = obstore.list(self._backend, prefix=prefix)
            return {item["path"]: item["size"] for page in pages for item in page}

        return self._attempt(f"list {prefix}", read)

    def folders(self) -> set[str]:
        """What keys begin with, up to their first slash."""

        def read() -> set[str]:
            return {each.rstrip("/") for each in obstore.list_with_delimiter(self._backend)["common_prefixes"]}

        return self._attempt("list what is there", read)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""
        try:
            self._attempt(f"delete {key}", lambda: obstore.delete(self._backend, key))
        except MissingObject:
            return

    def delete_under(self, prefix: str) -> None:
        """Delete every object under `prefix`, and what writers that were killed there had left half-written."""
        for key in self.list(prefix):
            self.delete(key)
        if self._directory is not None:
            shutil.rmtree(self._directory / prefix, ignore_errors=True)

    def _attempt(self, what: str, operation: Callable[[], T]) -> T:
        """Run `operation`, again after failures that may pass, until the deadline."""
        started, pause = time.monotonic(), _FIRST_PAUSE_S
        while True:
            try:
                return operation()
            except FileNotFoundError:
                raise MissingObject(f"{self.url}: could not {what}: there is no such object") from None
            except _REFUSED as error:
                reason = f"{first_line(error)}; check the URL and your rights to it"
                raise WeightError(f"{self.url}: could not {what}: {reason}") from None
            except (failures.GenericError, failures.JoinError, OSError) as error:
                self._raise_if_lasting(what, error)
                waited = time.monotonic() - started
                if waited + pause > self.deadline_s:
                    raise DeadlineExceeded(f"{self.url} to {what}", waited, first_line(error)) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _raise_if_lasting(self, what: str, error: BaseException) -> None:
        found = re.search(r"\(os error (\d+)\)", str(error))
        code = int(found.group(1)) if found else getattr(error, "errno", None)
        if code in _OS_FULL:
            raise WeightError(
                f"weight store {self.url}: could not {what}: {_OS_FULL[code]}; what was published before is whole: "
                "free some space, or lower weights.keep, and resume"
            ) from None
        if code in _OS_REFUSED:
            raise WeightError(f"weight store {self.url}: could not {what}: {_OS_REFUSED[code]}") from None


def first_line(error: BaseException) -> str:
    """obstore appends its own debug dump below the message."""
    return str(error).strip().split("\n", 1)[0]

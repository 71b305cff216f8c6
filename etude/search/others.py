"""Embedders of others, for whoever names one: a server's, or a static model on this disk.

Owns `SearchConfig`, the table `[search]` of a user's agent.toml, `Served`, which asks an OpenAI-compatible
`/embeddings`, and `Static`, which reads a directory as model2vec writes it. Nothing of this is used unless it is named,
and with `Static` nothing leaves the machine. What fails raises EmbedderFailed, and the search goes by words.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from etude.config import Config
from etude.deadlines import scaled
from etude.errors import ConfigError
from etude.plain import plain_line
from etude.search.base import Vectors
from etude.search.embedder import Embedder, EmbedderFailed, File, rounded, shipped
from etude.serving.trust import trust

_AT_ONCE = 64
_MOST_CHARS = 2000
"""Of a piece: what servers' models read of a text at least."""
_ANSWER_S = 30.0
"""One request with its answer: a model on a CPU takes seconds for as many pieces."""
_MOST_ANSWER_BYTES = 128 << 10
"""For each text: 5,000 numbers as they are written."""
_MOST_REASON = 300
_TYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I8": np.int8, "I64": np.int64, "I32": np.int32}


class SearchConfig(Config):
    """By whose vectors code is searched; by default our own, which leave nothing out of this machine."""

    url: str = Field("", pattern=r"^(https?://\S+)?$")
    """The base of an OpenAI-compatible server, usually ending in /v1: the pieces of your files are sent to it, without
    the secrets that are found in them."""
    model: str = ""
    """The embedding model's name there."""
    key_env: str = ""
    """Environment variable that holds its key; empty for a server that wants none."""
    directory: Path | None = None
    """A static model as model2vec writes it, instead."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.url and self.directory is not None:
            raise ValueError("set url or directory, not both")
        if bool(self.url) != bool(self.model):
            raise ValueError("a server's embedder is named by url and model together")
        if self.key_env and not self.url:
            raise ValueError("key_env has no effect without url")
        return self

    def embedder(self, redact: Callable[[str], str]) -> Embedder:
        """`redact` takes the secrets out of a text before it is sent to a server, line for line. Raises ConfigError
        where what is named is not there."""
        if self.url:
            return Served(self, redact)
        return shipped() if self.directory is None else Static(self.directory.expanduser())


class Served:
    """Of a server. Known by its address and the model's name: that another stands behind them is not seen."""

    def __init__(self, config: SearchConfig, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self.identity = f"served-{hashlib.blake2b(f'{config.url} {config.model}'.encode(), digest_size=6).hexdigest()}"
        self._address, self._model = f"{config.url.rstrip('/')}/embeddings", config.model
        key = os.environ.get(config.key_env) if config.key_env else None
        if config.key_env and not key:
            raise ConfigError(f"search.key_env: ${config.key_env} is not set; export the key of {config.url} in it")
        local = urlsplit(config.url).hostname in ("127.0.0.1", "localhost", "::1")
        self.width = 0
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._by_environment, self._verify = not local, trust(config.url, by_environment=not local)

    def files(self, files: Sequence[File]) -> list[Vectors]:
        texts = [text for pieces, lines in files for text in texts_of((pieces, self._redacted(lines)))]
        some = (self._asked(texts[at : at + _AT_ONCE]) for at in range(0, len(texts), _AT_ONCE))
        found = [row for rows in some for row in rows]
        return [rounded(each) for each in _by_file(files, found)]

    def question(self, text: str) -> Vectors:
        return rounded(self._asked([self._redact(text)]))

    def _redacted(self, lines: Sequence[str]) -> list[str]:
        """A file as a whole, since a key may be longer than a piece."""
        return self._redact("\n".join(lines)).split("\n")

    def _asked(self, texts: Sequence[str]) -> NDArray[np.float32]:
        try:
            rows = sorted(json.loads(asyncio.run(self._answer(texts)))["data"], key=lambda row: row["index"])
            found = np.array([row["embedding"] for row in rows], np.float32)
        except TimeoutError:
            raise EmbedderFailed(f"{self._address} has not answered in {scaled(_ANSWER_S):.0f} s") from None
        except (
            httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError, LookupError, ArithmeticError, RecursionError,
        ) as error:  # fmt: skip
            told = plain_line(f"{type(error).__name__}: {error}")
            raise EmbedderFailed(f"{self._address} gives no vectors ({told})") from None
        if found.shape[:1] != (len(texts),) or found.ndim != 2 or not np.isfinite(found).all():
            raise EmbedderFailed(f"{self._address} gives no vector for each text")
        return found

    async def _answer(self, texts: Sequence[str]) -> bytes:
        """All of it by one deadline and no longer than vectors are, whatever a server does to hold us. It is asked to
        pack nothing, and nothing is unpacked."""
        most = (len(texts) + 1) * _MOST_ANSWER_BYTES
        made = httpx2.AsyncClient(
            headers=self._headers, timeout=None, trust_env=self._by_environment, verify=self._verify
        )
        async with asyncio.timeout(scaled(_ANSWER_S)), made as client:
            asked = {"model": self._model, "input": list(texts)}
            async with client.stream("POST", self._address, json=asked) as answer:
                data = bytearray()
                async for some in answer.aiter_raw():
                    data += some
                    if len(data) > most:
                        raise ValueError(f"its answer is longer than {most} bytes")
                if answer.is_error:
                    why = _reason(bytes(data), answer.reason_phrase)
                    raise EmbedderFailed(f"{self._address} refuses with {answer.status_code}: {why}")
                return bytes(data)


class Static:
    """A directory with tokenizer.json and model.safetensors: a vector a token, and a text has their mean."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self._tensors = _safetensors((directory / "model.safetensors").read_bytes())
            self._tokenizer = (directory / "tokenizer.json").read_bytes()
            self._vectors = self._tensors["embeddings"].astype(np.float32)
            self._places = self._tensors.get("mapping", np.arange(len(self._vectors)))
            if (
                self._vectors.ndim != 2
                or not np.isfinite(self._vectors).all()
                or not _all_in(self._places, self._vectors)
            ):
                raise ValueError("its embeddings are no rows of numbers")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ConfigError(
                f"search.directory: {directory} is no static model ({error}); model2vec writes them"
            ) from None
        self.width = self._vectors.shape[1]
        told = hashlib.blake2b(self._tokenizer, digest_size=6)
        told.update(self._tensors["embeddings"].tobytes())
        self.identity = f"static-{told.hexdigest()}"

    @cached_property
    def _tokens(self) -> Any:
        from tokenizers import Tokenizer

        try:
            made = Tokenizer.from_str(self._tokenizer.decode())
        except Exception as error:  # the package raises nothing more exact
            raise EmbedderFailed(f"{self._directory}/tokenizer.json is none: {error}") from None
        made.no_padding()
        made.no_truncation()
        return made

    def files(self, files: Sequence[File]) -> list[Vectors]:
        return [rounded(self._mean(texts_of(file))) for file in files]

    def question(self, text: str) -> Vectors:
        return rounded(self._mean([text]))

    def _mean(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        unknown = self._tokens.token_to_id("[UNK]")
        weights = self._tensors.get("weights", np.ones(len(self._places)))
        for at, each in enumerate(self._tokens.encode_batch(list(texts), add_special_tokens=False)):
            ids = np.array([token for token in each.ids if token != unknown], np.int64)
            if len(ids) and ids.max() >= min(len(self._places), len(weights)):
                raise EmbedderFailed(f"{self._directory}: tokenizer.json has more tokens than model.safetensors")
            if len(ids):
                found[at] = (self._vectors[self._places[ids]] * weights[ids, None]).mean(0)
        return found


def _all_in(places: NDArray[Any], rows: NDArray[Any]) -> bool:
    """Whether each place is the number of a row."""
    return places.ndim == 1 and places.dtype.kind in "iu" and bool(((places >= 0) & (places < len(rows))).all())


def _reason(said: bytes, otherwise: str) -> str:
    """In the server's own words."""
    text = said.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        text = str(json.loads(said)["error"]["message"])
    return plain_line(text)[:_MOST_REASON] or otherwise


def texts_of(file: File) -> list[str]:
    """Of each piece of a file its lines."""
    pieces, lines = file
    return ["\n".join(lines[piece.first : piece.end])[:_MOST_CHARS] for piece in pieces]


def _by_file(files: Sequence[File], rows: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    found, at, width = [], 0, len(rows[0]) if rows else 0
    for pieces, _ in files:
        found.append(np.array(rows[at : at + len(pieces)], np.float32).reshape(len(pieces), width))
        at += len(pieces)
    return found


def _safetensors(data: bytes) -> dict[str, NDArray[Any]]:
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    found = {}
    for name, about in head.items():
        if name != "__metadata__":
            first, end = (8 + size + at for at in about["data_offsets"])
            found[name] = np.frombuffer(data[first:end], _TYPES[about["dtype"]]).reshape(about["shape"])
    return found

"""Which endpoint, which model, and how patient to be with it.

Owns `EndpointConfig` and what it shares with whoever asks for single messages (`ServerConfig`), and where the key is
read from. Opens no connection.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator

from etude.config import Config
from etude.errors import ConfigError

_OURS = {
    "model", "messages", "input", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "store", "temperature",
}  # fmt: skip
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class ServerConfig(Config):
    """Where a model is asked over HTTP, and how."""

    url: str
    """The endpoint's base, as OpenAI's clients want it; usually it ends in /v1."""
    model: str = Field(min_length=1)
    """The name it has there."""
    dialect: Literal["chat", "responses"] = "chat"
    """Chat completions, which every server speaks, or responses, which keeps sealed reasoning between turns."""
    key_env: str = ""
    """Environment variable that holds the key; empty for an endpoint that wants none."""
    key_file: Path | None = None
    """File that holds the key, instead."""
    stream: bool = True
    """Have the message come as it is written; false for a server that cannot."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Of sampling; some models take only their own. None: the server's."""
    body: dict[str, Any] = {}
    """More keys of the request, as they stand: `reasoning_effort`, `top_p`, what the server has of its own."""
    headers: dict[str, str] = {}
    """Further ones of every request."""
    attempts: int = Field(6, ge=1)
    """How often a message is asked for where the server is busy, fails, or breaks off."""

    @field_validator("url")
    @classmethod
    def _absolute(cls, url: str) -> str:
        parts = urlsplit(url)
        plain = url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or not _port_is_one(parts):
            raise ValueError(f"must be an address like http://127.0.0.1:8000/v1, not {url!r}")
        if parts.query or parts.fragment:
            raise ValueError("must end before any ? or #")
        if parts.username or parts.password:
            raise ValueError("must hold no key; name the variable that holds it in key_env")
        return url.rstrip("/").removesuffix("/chat/completions").removesuffix("/responses")

    @field_validator("body")
    @classmethod
    def _not_ours(cls, body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & body.keys()):
            raise ValueError(
                f"{', '.join(taken)} is set by Etude; the config has a key of its own for what can be chosen"
            )
        return body

    @property
    def is_local(self) -> bool:
        """On this machine: no proxy leads there."""
        return urlsplit(self.url).hostname in _LOOPBACK

    def secrets(self) -> list[str]:
        """What must be in no text and no command: the key, and what the headers hold."""
        key = self.read_key()
        words = [word for value in self.headers.values() for word in (value, *value.split())]
        return list(dict.fromkeys(([key] if key else []) + words))

    def read_key(self) -> str | None:
        """The key, or None. Raises ConfigError where one is named and cannot be had."""
        if self.key_env and self.key_file is not None:
            raise ConfigError("endpoint: set key_env or key_file, not both")
        if self.key_env:
            where, key = f"${self.key_env}", os.environ.get(self.key_env)
            if key is None:
                raise ConfigError(f"endpoint.key_env: {where} is not set; export the key of {self.url} in it")
        elif self.key_file is not None:
            where = str(self.key_file)
            try:
                key = self.key_file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or error
                raise ConfigError(
                    f"endpoint.key_file: {where} cannot be read ({why}); it holds the key of {self.url}: where that is "
                    "`etude serve`, the server makes it when it starts, as its token_file"
                ) from None
        else:
            return None
        key = key.strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(f"endpoint: {where} holds no key: one word of plain characters is expected")
        return key


class EndpointConfig(ServerConfig):
    """A model that sessions are held with."""

    calls: Literal["native", "text"] = "native"
    """How tools are called: by the protocol's own function calls, or by Etude's XML in the text, for a model or server
    that has no function calling."""
    reasoning: Literal["return", "drop"] = "return"
    """What is done with a message's reasoning: given back with the message, as models trained to think between calls
    want it, or left out of the conversation."""
    repetition: Literal["cut", "allow"] = "cut"
    """What is done where an answer's end says the same for thousands of characters: it is cut there and the model told
    so, which ends the prompt the second time; or it is let go on to its longest."""
    cache_key: bool = False
    """Send the session's id as `prompt_cache_key`: endpoints that know it keep a session near its cache."""


def _port_is_one(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # no number, or above 65535
        return False

"""What a foreign engine's kind must know: its routes of HTTP, and how its answers become ours.

Owns the `Dialect` protocol and `ForeignCompletion`, the common form of what vLLM and SGLang answer. Talks to: `http`.
Never decides when weights change (`engine.foreign.engine`) or whether they are right (`engine.foreign.check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from etude.engine.foreign.http import ServerConnection, ServerRefused
from etude.harness.sampler import SampleRequest
from etude.records import Version

Span = tuple[Version, int, int]
"""A version and the sampled tokens it is behind: from, and up to, their places."""


@dataclass(frozen=True)
class ForeignCompletion:
    """One completion as the server gave it. `routes` are still in the server's encoding."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    """stop, length, or what else the server calls its end; "abort" for a request that it gave up."""
    spans: tuple[Span, ...] = ()
    """Empty from a server that does not say which weights sampled what."""
    routes: Any = None
    prompt_logprobs: tuple[float, ...] = ()
    """Of every prompt token but the first; only if asked for."""
    cached_tokens: int = 0
    """Prompt tokens that had not to be computed, where the server says so."""


class Dialect(Protocol):
    """One kind of server. Holds no state but its config."""

    hints: Mapping[int, str]
    """What to do about a status that this kind of server gives for a known reason."""

    async def generate(
        self, wire: ServerConnection, request: SampleRequest, request_id: str, salt: str, score_prompt: bool = False
    ) -> ForeignCompletion:
        """Sample. Cached prefixes are shared only among requests of the same salt. `score_prompt` asks for the prompt's
        log-probabilities too.
        """
        ...

    async def update(self, wire: ServerConnection, checkpoint: Path, version: Version) -> None:
        """Have a checkpoint served as `version`; returns when the server says that it is."""
        ...


def spans_of(reported: Sequence[Mapping[str, Any]] | None) -> tuple[Span, ...]:
    """Both servers' `weight_versions`. A version that is no number of ours is the base's, under whatever name."""
    return tuple((as_version(each["version"]), int(each["start"]), int(each["end"])) for each in reported or ())


def as_version(name: object) -> Version:
    """The version a server says it serves; 0 until it has been told one."""
    text = str(name)
    return Version(int(text)) if text.isdigit() else Version(0)


def unreadable_answer(wire: ServerConnection, what: str, answer: Any) -> ServerRefused:
    """For an answer that is a success in form, and not in what it says or lacks."""
    return ServerRefused(f"{wire.url} was to {what} and answered {str(answer)[:300]}")

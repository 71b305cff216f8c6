"""The engine seam as a session sees it: token ids in, token ids out.

Owns the `Sampler` and `Chat` protocols. Implemented by the engine room (its own engine, and adapters for others), by
the scripted expert of the tasks room, and by `models.chat`. Imports neither torch nor Ray: the harness is also the
product on a laptop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from etude.records import Routes

NO_ROUTES: Routes = np.zeros((0, 0, 0), dtype=np.uint8)
NO_SESSION = ""
"""The session of a request that belongs to none: nothing of it is kept for a next turn."""


@dataclass(frozen=True)
class SampleRequest:
    """Continue `prompt_ids`, the whole context of the session's segment so far.

    `session_id` keeps a session on the engine that holds its cache. `seed` makes the result independent of what else
    is in the batch. Sampling stops after any of `stop_ids` (which is kept in the result) or at `max_tokens`. `top_k` (0
    is all), `top_p` and `min_p` leave the unlikely out of the distribution that is sampled from.
    """

    session_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int]
    temperature: float = 1.0
    seed: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_logprobs: int = 0
    """How many of the most likely tokens to tell of, beside each sampled one; only to who listens token by token."""
    sampling_mask: bool = False
    """Tell which tokens each one was drawn from, so that a trainer can scale its distribution to the same ones."""
    prompt_logprobs: int | None = None
    """Tell the log-probability of every token of the prompt, with so many of the most likely ones beside it. The whole
    prompt is computed for it, whatever is cached. None: don't.
    """


@dataclass(frozen=True)
class PromptTokenScore:
    """A token of a prompt under the model's own distribution: temperature 1, nothing cut."""

    token: int
    logprob: float
    rank: int
    """1 is the most likely token there."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens and their log-probabilities, best first."""


@dataclass(frozen=True)
class Completion:
    """What was sampled. `logprobs` are of the distribution sampled from; `versions` the weights behind each token.

    `routed_experts` [P, L, K] holds the routes of positions 0..P-1 of the context, P = len(prompt) + len(token_ids) -
    1, cached prefix included; it is `NO_ROUTES` from a sampler that has none.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: Literal["stop", "length"]
    routed_experts: Routes = field(default_factory=lambda: NO_ROUTES)
    cached_tokens: int = 0
    """Prompt tokens that had not to be computed."""
    masks: tuple[tuple[int, ...], ...] = ()
    """If asked for, the tokens each one was drawn from, in order; () where that was the whole vocabulary."""
    prompt_scores: tuple[PromptTokenScore, ...] = ()
    """If asked for, of every token of the prompt but the first."""


class Sampler(Protocol):
    async def sample(self, request: SampleRequest) -> Completion:
        """Raises ContextOverflow when prompt and max_tokens do not fit, DeadlineExceeded when the engine is stuck."""
        ...


class Chat(Protocol):
    """Turns messages into token ids that are only ever appended, and sampled ids into text."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an assistant message."""
        ...

    @property
    def end_id(self) -> int:
        """The one of `stop_ids` that a well-formed message ends with; closes a message that was cut off."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of text as it stands, tool tags as their own tokens; how a script writes a message."""
        ...

    def opening(self, system: str, user: str) -> list[int]:
        """Ids of a session's start, up to and including the header after which the assistant writes."""
        ...

    def observation(self, content: str) -> list[int]:
        """Ids that follow a sampled assistant message: its newline, one tool-result message, the next header."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The exact text of sampled ids, tool tags included and the end-of-message token left out."""
        ...

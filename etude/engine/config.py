"""What an engine is told. Apart from the engine itself, so that reading a recipe does not load torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from etude.deadlines import Wait
from etude.engine.plugin import EngineTable


class EngineConfig(EngineTable):
    """Our own engine: the size of its cache, steps and batch."""

    replicas: ClassVar[int] = 1
    silence_s: ClassVar[Wait] = Wait(120.0)
    """A request of which nothing is computed for this long fails: a step of a large model on one core takes less. An
    answer may take as long as it will, while it grows."""
    update_s: ClassVar[float] = 60.0
    """New weights go in between two steps; this is for a machine that is busy."""

    kind: Literal["etude"] = "etude"

    cache_tokens: int = Field(0, ge=0)
    """Positions the cache holds, over all sequences; 0: as many as fit the memory there is and the model's size."""
    step_tokens: int = 512
    """Most tokens of one forward; what decode rows leave goes to prefill."""
    max_running: int = 128
    """Most sequences decoded together."""
    in_flight: Literal["keep", "recompute"] = "keep"
    """What becomes of keys and values that older weights computed when new ones go in: they are kept, which costs
    nothing, or every sequence computes its own anew before its next token. Sampled tokens and their routes stay.
    """
    lookup_tokens: int = 0
    """Speculation by prompt lookup: most tokens guessed a step and sequence, fewer where they would cost more than they
    save; 0 turns it off. It changes no token."""
    further_tokens: int = 0
    """Speculation by the layer that a checkpoint has for the token after the next (DeepSeek-V3's do): most tokens
    guessed a step and sequence; 0 turns it off. It changes no token."""

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a whole run leaves at more than zero. Lookups stop where they are seldom right: that some were
        tried is enough.
        """
        guesses = ("guessed_tokens",) * bool(self.lookup_tokens) + ("further_right",) * bool(self.further_tokens)
        return ("session_cache_tokens", "prefix_hit_tokens", *guesses)

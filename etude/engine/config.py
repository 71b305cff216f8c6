"""What an engine is told. Apart from the engine itself, so that reading a recipe does not load torch."""

from __future__ import annotations

from etude.config import Config


class EngineConfig(Config):
    """The size of the engine's cache, steps and batch."""

    cache_tokens: int = 98_304
    """Positions the cache holds, over all sequences."""
    step_tokens: int = 512
    """Most tokens of one forward; what decode rows leave goes to prefill."""
    max_running: int = 128
    """Most sequences decoded together."""
    request_deadline_s: float = 120.0
    """A request that has no result after this long fails."""

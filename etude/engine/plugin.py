"""What makes an engine known: one object, found by its name in the entry-point group `etude.engines`.

Owns `EnginePlugin` and `EngineTable`. `engine.opening` finds and opens them; docs/extending.md adds one. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.config import Config

if TYPE_CHECKING:
    from etude.engine.base import Engine
    from etude.models.decoder import Decoder


class EngineTable(Config):
    """The `engine` table of a recipe: what every engine's config has."""

    kind: str = ""
    """The plug-in's name; every config of one has its own as the default."""

    if TYPE_CHECKING:  # a config has each as a key, a property or a class variable

        @property
        def replicas(self) -> int:
            """How many engines there are, each with all weights."""

        @property
        def update_deadline_s(self) -> float:
            """New weights that are not served after this long are an error."""

    @property
    def features(self) -> tuple[str, ...]:
        """Counters that a whole run leaves at more than zero."""
        return ()


@dataclass(frozen=True)
class EnginePlugin:
    """One kind of engine. Must be quick to import: `open` imports what it needs."""

    config: type[EngineTable]
    open: Callable[[Any, Decoder, int], Engine]
    """By its config, the base's weights, and which of its replicas it is."""

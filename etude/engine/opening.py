"""Finds and opens the engine that a config names.

Owns the search by name, in the entry-point group `etude.engines` (`engine.plugin`), and the type of a recipe's `engine`
table, which is the union of their configs. Knows none of them, and loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from etude.engine.plugin import EnginePlugin, EngineTable
from etude.plugins import loaded, one_of

if TYPE_CHECKING:
    from etude.engine.base import Engine
    from etude.models.decoder import Decoder

PLUGINS: dict[str, EnginePlugin] = loaded("engines", EnginePlugin)
OURS = "etude"


def _kind(table: Any) -> str:
    """Which engine a table is meant for: our own where it does not say."""
    return table.get("kind", OURS) if isinstance(table, dict) else getattr(table, "kind", "")


if TYPE_CHECKING:
    EngineChoice: TypeAlias = EngineTable
else:
    EngineChoice = one_of("engines", ((name, plugin.config) for name, plugin in PLUGINS.items()), _kind)
    """What an `engine` table of a recipe holds: `kind` says which."""


def open_engine(config: EngineTable, decoder: Decoder, replica: int = 0) -> Engine:
    """`decoder` holds the base's weights: our own engine samples with it, a foreign one is checked with it."""
    return PLUGINS[config.kind].open(config, decoder, replica)

"""Makes the engine that a recipe asks for. The one place that knows which engines there are."""

from __future__ import annotations

from etude.engine.base import Engine
from etude.engine.config import EngineConfig
from etude.engine.foreign.config import SglangConfig, VllmConfig
from etude.models.decoder import Decoder


def open_engine(config: EngineConfig | VllmConfig | SglangConfig, decoder: Decoder, replica: int = 0) -> Engine:
    """`decoder` holds the base's weights: our own engine samples with it, a foreign one is checked with it."""
    if isinstance(config, EngineConfig):
        from etude.engine.torch_engine import TorchEngine

        return TorchEngine(decoder, config)
    from etude.engine.foreign.engine import ForeignEngine

    return ForeignEngine(config, decoder, config.urls[replica])

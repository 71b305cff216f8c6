"""The engines that Etude brings with it, as plug-ins: which config opens which. Loads no torch before one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.engine.config import EngineConfig
from etude.engine.foreign.config import SglangConfig, VllmConfig
from etude.engine.plugin import EnginePlugin

if TYPE_CHECKING:
    from etude.engine.base import Engine
    from etude.models.decoder import Decoder


def _ours(config: EngineConfig, decoder: Decoder, replica: int) -> Engine:
    from etude.engine.torch_engine import TorchEngine

    return TorchEngine(decoder, config)


def _foreign(config: VllmConfig | SglangConfig, decoder: Decoder, replica: int) -> Engine:
    from etude.engine.foreign.engine import ForeignEngine

    return ForeignEngine(config, decoder, config.urls[replica])


ETUDE = EnginePlugin(EngineConfig, _ours)
VLLM = EnginePlugin(VllmConfig, _foreign)
SGLANG = EnginePlugin(SglangConfig, _foreign)

"""An engine whose experts multiply in a low precision that the trainer does not have: for `benchmarks/science.py`.

A plug-in of the group `etude.engines` (docs/extending.md), found where PYTHONPATH names this directory. In Etude's own
engine trainer and sampler multiply in one format, so that their log-probabilities agree; a fleet of other engines often
samples in a lower one, and then importance weights have something to correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from etude.engine.config import EngineConfig
from etude.engine.plugin import EnginePlugin
from etude.models.config import ExpertFormat

if TYPE_CHECKING:
    from etude.engine.torch_engine import TorchEngine
    from etude.models.decoder import Decoder


class LowSampler(EngineConfig):
    """Our own engine, and what its experts multiply in."""

    kind: Literal["low"] = "low"
    expert_format: ExpertFormat = "nvfp4"


def open_low(config: LowSampler, decoder: Decoder, replica: int) -> TorchEngine:
    from etude.engine.torch_engine import TorchEngine  # here, as reading a recipe does not load torch
    from etude.models.expert_format import set_expert_format

    set_expert_format(decoder, config.expert_format)
    return TorchEngine(decoder, config)


PLUGIN = EnginePlugin(LowSampler, open_low)

"""How large a model is, without making it. Owns `active_parameters` and `parameters_of`."""

from __future__ import annotations

import torch

from etude.models.config import ModelConfig
from etude.models.decoder import Decoder


def active_parameters(config: ModelConfig) -> int:
    """The parameters that one token is multiplied with: of every mixture its chosen experts only, and of the embeddings
    the output's. A forward costs about twice as many floating-point operations, a training step six times."""
    with torch.device("meta"):
        decoder = Decoder(config)
    active = 0.0
    for name, parameter in decoder.named_parameters():
        if parameter.dim() < 2 or (name.startswith("embed") and not config.tie_embeddings):
            continue
        share = config.experts_per_token / config.experts if parameter.dim() == 3 and config.experts else 1.0
        active += share * parameter.numel()
    return round(active)


def parameters_of(config: ModelConfig) -> int:
    """All of them, those of every expert too."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Decoder(config).parameters())

"""A decoder whose context is made longer: its rotary positions are stretched by YaRN (arXiv 2309.00071).

Owns `stretched`. The weights are the same; it is training on long texts that makes them fit. What is saved says so in
its config.json, in the published form, which `transformers` and vLLM read.
"""

from __future__ import annotations

import torch

from etude.errors import ConfigError
from etude.models.config import ModelConfig, YarnConfig
from etude.models.decoder import Decoder


def stretched_config(config: ModelConfig, max_context: int) -> ModelConfig:
    """The same shape with a longer context. Raises ConfigError where that is none, or positions are stretched in
    another way already.
    """
    if max_context <= config.max_context:
        raise ConfigError(
            f"max_context = {max_context}: the model's context is {config.max_context} already; name a longer one, or "
            "leave it out"
        )
    if config.bands is not None:
        raise ConfigError(
            "max_context: this model's positions are stretched as Llama 3's are, which YaRN cannot stretch once more; "
            "leave max_context out, or begin from a model without such bands"
        )
    yarn = config.yarn or YarnConfig(factor=1.0, original_context=config.max_context)
    longer = yarn.model_copy(update={"factor": max_context / yarn.original_context})
    return config.model_copy(update={"yarn": longer, "max_context": max_context})


def stretched(decoder: Decoder, max_context: int) -> Decoder:
    """A decoder with the same tensors and a longer context."""
    with torch.device("meta"):
        longer = Decoder(stretched_config(decoder.config, max_context))
    longer.load_state_dict(decoder.state_dict(), assign=True)
    for parameter in longer.parameters():
        parameter.requires_grad_(True)
    return longer.place(decoder.placement)

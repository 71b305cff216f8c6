"""The format that a decoder's experts multiply in, by its name in a recipe.

Owns the choice and the check that a model's shape allows it. What the formats are, and how gradients pass through them,
is `kernels.low_precision`'s. Trainer and engine set the same one, so that they multiply by the same codes.
"""

from __future__ import annotations

from etude.errors import ConfigError
from etude.kernels.low_precision import ExpertLinear
from etude.models.config import ExpertFormat, ModelConfig
from etude.models.decoder import Decoder

BLOCK = 32
"""Both sides of a matrix must be multiples of it: each is the contraction of one pass."""


def set_expert_format(decoder: Decoder, form: ExpertFormat) -> ExpertLinear | None:
    """Multiply in this format from now on. Returns what counts the rows multiplied, None for "plain"."""
    if form == "plain":
        return None
    require_expert_format(decoder.config, form)
    product = ExpertLinear(form, decoder.kernels.block_scaled)
    decoder.set_expert_product(product)
    return product


def require_expert_format(config: ModelConfig, form: ExpertFormat) -> None:
    """Raises ConfigError if a model of this shape cannot multiply in the format."""
    if form == "plain":
        return
    if not config.moe_layers:
        raise ConfigError(f'model.expert_format = "{form}": this model has no experts; set it to "plain"')
    for name, width in (("hidden size", config.width), ("expert width", config.expert_width)):
        if width % BLOCK:
            raise ConfigError(
                f'model.expert_format = "{form}": a {name} of {width} is no multiple of {BLOCK}; set it to "plain"'
            )

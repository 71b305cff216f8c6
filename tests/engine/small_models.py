"""Random small models and their plain recomputation, for what is tested against the engine from outside."""

from pathlib import Path

import torch

from etude.models.attention import PackedAttention
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.state import round_to_bf16
from etude.models.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "models/etude-tiny"
SHAPE = ModelConfig(
    vocab_size=1024, width=32, layers=2, heads=4, head_width=8, experts=4, expert_width=16, max_context=256
)


def random_decoder(seed=0, shape=SHAPE, scale=8):
    """Random, but scaled so that its choices are clear-cut as a trained model's are."""
    model = Decoder(shape)
    model.initialise(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    round_to_bf16(model)
    return model


def shipped_tokenizer():
    return load_tokenizer(SHIPPED)


@torch.no_grad()
def plain_logits(model, ids):
    """Logits [len(ids), V], all at once and without a cache."""
    output = model(torch.tensor(ids), torch.arange(len(ids)), PackedAttention([len(ids)]))
    return model.logits(output.hidden_ND)

"""YaRN on checkpoints that were made without it: parity with transformers far beyond the old context."""

import json

import pytest
import torch

from etude.errors import ConfigError
from etude.models.attention import PackedAttention
from etude.models.checkpoint import save_checkpoint
from etude.models.config import BandsConfig, ModelConfig
from etude.models.decoder import Decoder
from etude.models.stretch import stretched, stretched_config

transformers = pytest.importorskip("transformers", reason="parity needs the dev extra")
torch.set_num_threads(1)
SHAPE = {"vocab_size": 96, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8, "max_context": 64,
         "experts": 0, "dense_width": 48}  # fmt: skip
SHAPES = {
    "llama": ModelConfig(**SHAPE, head_norm=False),
    "qwen2": ModelConfig(**SHAPE, head_norm=False, qkv_bias=True, tie_embeddings=False),
    "qwen3-moe": ModelConfig(**{**SHAPE, "experts": 4, "dense_width": 0}, expert_width=16),
}


def logits(decoder, ids):
    with torch.no_grad():
        return decoder.logits(decoder(ids, torch.arange(len(ids)), PackedAttention([len(ids)])).hidden_ND)


def made(shape):
    decoder = Decoder(shape)
    decoder.initialise(0)
    with torch.no_grad():  # so that attention looks somewhere
        for parameter in decoder.parameters():
            parameter.mul_(6.0 if parameter.dim() > 1 else 1.0)
    return decoder


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_computes_the_same_with_the_config_that_is_saved(tmp_path, name):
    plain = made(SHAPES[name])
    longer = stretched(plain, 512)
    ids = torch.randint(0, 96, (400,), generator=torch.Generator().manual_seed(1))
    save_checkpoint(longer, tmp_path, dtype=torch.float32)
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["max_position_embeddings"] == 512
    assert said["rope_scaling"]["rope_type"] == "yarn" and said["rope_scaling"]["factor"] == 8.0
    assert said["rope_scaling"]["original_max_position_embeddings"] == 64
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    ours = logits(longer, ids)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    assert (logits(plain, ids)[200:] - ours[200:]).abs().max() > 1e-2, "positions were stretched"
    assert longer.embed.weight.requires_grad and torch.equal(longer.embed.weight, plain.embed.weight)


def test_what_is_stretched_already_is_stretched_from_where_it_began():
    twice = stretched_config(stretched_config(SHAPES["llama"], 128), 512)
    assert twice == stretched_config(SHAPES["llama"], 512)
    with pytest.raises(ConfigError, match="context is 64 already"):
        stretched_config(SHAPES["llama"], 64)
    bands = SHAPES["llama"].model_copy(update={"bands": BandsConfig(factor=8.0, original_context=64)})
    with pytest.raises(ConfigError, match="as Llama 3's are"):
        stretched_config(bands, 512)

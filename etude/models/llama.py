"""Llama (arXiv 2302.13971) and the many small models in its layout: `LlamaForCausalLM`.

Owns the mapping of its config.json: a dense decoder whose heads are not normed. Biases and Llama 3's stretched
positions are refused.
"""

from __future__ import annotations

from typing import Any

from etude.models.config import ModelConfig
from etude.models.published import Family, Published


def _read(published: Published) -> dict[str, Any]:
    heads = published.take("num_attention_heads")
    return {
        "kv_heads": published.take("num_key_value_heads", heads),
        "head_width": published.take("head_dim", published.take("hidden_size") // heads),
        "head_norm": False,
        "experts": 0,
        "dense_width": published.take("intermediate_size"),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.dense_width,
    }


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    read=_read,
    write=_write,
    fits=lambda config: config.latent is None and not config.head_norm and not config.experts,
    settled={"mlp_bias": False, "rope_interleaved": False},
    inert=frozenset(("is_llama_config", "transformers.js_config")),
)

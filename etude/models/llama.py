"""Llama (arXiv 2302.13971) and the models in its layout: `LlamaForCausalLM`, `MistralForCausalLM` (arXiv 2310.06825),
`Qwen2ForCausalLM` (arXiv 2407.10671; Qwen2.5, too).

Owns the mapping of their config.json: dense decoders whose heads are not normed, Qwen2's with biases of queries, keys
and values. A sliding window is no part of the decoder: a Mistral that has one is read with a context as long as that
window, within which it changes nothing. Other biases are refused.
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


def _read_mistral(published: Published) -> dict[str, Any]:
    context = published.take("max_position_embeddings")
    return _read(published) | {"max_context": min(context, published.take("sliding_window", context))}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.dense_width,
    }


def _fits(config: ModelConfig) -> bool:
    return config.latent is None and not config.head_norm and not config.experts


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    read=_read,
    write=_write,
    fits=lambda config: _fits(config) and not config.qkv_bias,
    settled={"mlp_bias": False, "rope_interleaved": False},
    inert=frozenset(("is_llama_config", "transformers.js_config")),
)
MISTRAL = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    read=_read_mistral,
    write=_write,
    fits=lambda config: False,  # what it holds, Llama's layout holds
    inert=frozenset(("layer_types",)),
)
QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    read=lambda published: _read(published) | {"qkv_bias": True},
    write=_write,
    fits=lambda config: _fits(config) and config.qkv_bias,
    settled={"use_sliding_window": False, "use_mrope": False},
    inert=frozenset(("sliding_window", "max_window_layers", "layer_types")),
)

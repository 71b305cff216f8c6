"""Qwen3, dense and mixture-of-experts (arXiv 2505.09388): `Qwen3ForCausalLM`, `Qwen3MoeForCausalLM`.

Owns the mapping of their config.json. Grouped-query attention with normed heads; a softmax router, no shared experts;
single layers of the mixture may be dense. Biases in attention and sliding windows are refused.
"""

from __future__ import annotations

import reprlib
from typing import Any

from etude.errors import CheckpointError
from etude.models.config import ModelConfig
from etude.models.published import Family, Published

_GROUPED = {"kv_heads": "num_key_value_heads", "head_width": "head_dim"}
_EXPERTS = {
    "experts_per_token": "num_experts_per_tok", "expert_width": "moe_intermediate_size",
    "normalise_gates": "norm_topk_prob",
}  # fmt: skip
_SETTLED = {"use_sliding_window": False}
_INERT = frozenset(("sliding_window", "max_window_layers", "layer_types", "router_aux_loss_coef"))


def _read(published: Published) -> dict[str, Any]:
    width = published.take("intermediate_size")
    return {**_read_grouped(published), "experts": 0, "dense_width": width}


def _write(config: ModelConfig) -> dict[str, Any]:
    return {**_write_grouped(config), "intermediate_size": config.dense_width}


def _read_moe(published: Published) -> dict[str, Any]:
    layers, step = range(published.take("num_hidden_layers")), published.take("decoder_sparse_step", 1)
    only = published.take("mlp_only_layers", [])
    if not isinstance(only, list) or any(type(layer) is not int or layer not in layers for layer in only):
        raise CheckpointError(
            f"{published.path}: mlp_only_layers is {reprlib.repr(only)}; it must be a list of layers, and there are "
            f"{len(layers)}"
        )
    width = published.take("intermediate_size", 0)
    experts = published.take("num_experts", published.take("num_local_experts", None))  # the newer name is the second
    mixture = {"experts": experts} | {ours: published.take(theirs) for ours, theirs in _EXPERTS.items()}
    dense = tuple(layer for layer in layers if layer in only or (layer + 1) % step or not experts)
    if len(dense) == len(layers):
        return {**_read_grouped(published), "experts": 0, "dense_width": width}
    if dense:
        mixture |= {"dense_layers": dense, "dense_width": width}
    return {**_read_grouped(published), **mixture}


def _write_moe(config: ModelConfig) -> dict[str, Any]:
    return {
        **_write_grouped(config),
        "num_experts": config.experts,
        **{theirs: getattr(config, ours) for ours, theirs in _EXPERTS.items()},
        "mlp_only_layers": list(config.dense_layers),
        "decoder_sparse_step": 1,
        "intermediate_size": config.dense_width or config.expert_width,  # unused without dense layers
    }


def _read_grouped(published: Published) -> dict[str, Any]:
    return {ours: published.take(theirs) for ours, theirs in _GROUPED.items()}


def _write_grouped(config: ModelConfig) -> dict[str, Any]:
    return {theirs: getattr(config, ours) for ours, theirs in _GROUPED.items()}


def _grouped(config: ModelConfig) -> bool:
    return config.latent is None and config.head_norm and not config.qkv_bias


def _plain_router(config: ModelConfig) -> bool:
    return config.router == "softmax" and not config.shared_width and config.gate_scale == 1.0


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    read=_read,
    write=_write,
    fits=lambda config: _grouped(config) and not config.experts,
    settled=_SETTLED,
    inert=_INERT,
)
QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    read=_read_moe,
    write=_write_moe,
    fits=lambda config: _grouped(config) and bool(config.experts) and _plain_router(config),
    settled=_SETTLED,
    inert=_INERT,
)

"""DeepSeek-V3 (arXiv 2412.19437), and Kimi-K2, which has its layout: `DeepseekV3ForCausalLM`.

Owns the mapping of its config.json. Latent attention; the first layers are dense, the others mixtures with shared
experts and a sigmoid router that chooses within groups. One layer for predicting a further token
(`num_nextn_predict_layers`) is read where the weights have it, and written.
"""

from __future__ import annotations

from typing import Any

from etude.models.config import ModelConfig
from etude.models.published import Family, Published

_LATENT = {
    "query_rank": "q_lora_rank", "rank": "kv_lora_rank", "plain_width": "qk_nope_head_dim",
    "rope_width": "qk_rope_head_dim", "value_width": "v_head_dim", "interleaved": "rope_interleave",
}  # fmt: skip
_EXPERTS = {
    "experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok", "expert_width": "moe_intermediate_size",
    "normalise_gates": "norm_topk_prob", "gate_scale": "routed_scaling_factor", "expert_groups": "n_group",
    "groups_per_token": "topk_group",
}  # fmt: skip
_ABSENT = {"query_rank": None, "interleaved": True, "expert_groups": 1, "groups_per_token": 1}
"""What a key that may be absent, or null, then means."""


def _read(published: Published) -> dict[str, Any]:
    published.expect("num_key_value_heads", published.take("num_attention_heads"))
    published.prediction_layers = published.take("num_nextn_predict_layers", 0)
    mixture = _take(published, _EXPERTS)
    shared = published.take("n_shared_experts", 0)
    dense, width = published.take("first_k_dense_replace", 0), published.take("intermediate_size", 0)
    if dense:
        mixture |= {"dense_layers": tuple(range(dense)), "dense_width": width}
    return {
        "latent": _take(published, _LATENT),
        "router": "sigmoid",
        "shared_width": shared * mixture["expert_width"],
        **mixture,
    }


def _take(published: Published, fields: dict[str, str]) -> dict[str, Any]:
    return {
        ours: published.take(theirs, _ABSENT[ours]) if ours in _ABSENT else published.take(theirs)
        for ours, theirs in fields.items()
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        **{theirs: getattr(config.latent, ours) for ours, theirs in _LATENT.items()},
        **{theirs: getattr(config, ours) for ours, theirs in _EXPERTS.items()},
        "num_key_value_heads": config.heads,
        "n_shared_experts": config.shared_width // config.expert_width,
        "first_k_dense_replace": len(config.dense_layers),
        "intermediate_size": config.dense_width or config.expert_width,  # unused without dense layers
        "num_nextn_predict_layers": int(config.further_token),
    }


def _fits(config: ModelConfig) -> bool:
    first_are_dense = config.dense_layers == tuple(range(len(config.dense_layers)))
    whole_experts = config.shared_width % config.expert_width == 0
    return config.latent is not None and config.router == "sigmoid" and first_are_dense and whole_experts


DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    read=_read,
    write=_write,
    fits=_fits,
    holds_further_token=True,
    settled={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
    inert=frozenset(("aux_loss_alpha", "seq_aux", "ep_size", "head_dim", "qk_head_dim")),
)

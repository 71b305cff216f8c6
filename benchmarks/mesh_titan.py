"""torchtitan's Qwen3-MoE on CPUs, for the race of `scale.py`: its model and its FSDP2, for a step of ours.

Written for torchtitan 0.3.0. Its trainer starts on no CPU: without an accelerator it takes "cuda" (`tools/utils.py`,
line 55) and sets that device (`trainer.py`, line 301). Its model does, with two of its parts exchanged:

    attention   a language model of it takes FlexAttention, which has no backward on a CPU, or varlen attention, which
                has no kernel there; this one takes `ScaledDotProductAttention`, which it keeps for others
    experts     multiply in bf16 whatever the weights are (`models/common/moe.py`, line 96); here they do so in fp32
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torchtitan.distributed.fsdp import apply_fsdp_to_decoder
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models import qwen3
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.moe import GroupedExperts

from etude.models.config import ModelConfig


class PlainExperts(GroupedExperts):
    """The same product of groups, in the weights' own format. On a CPU it is as fast as a loop over experts."""

    def forward(self, x_RD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:
        ends_E = num_tokens_per_expert_E.cumsum(0, dtype=torch.int32)
        gate_RF, up_RF = (
            self._grouped_mm(A=x_RD, B_t=weight_EFD.mT, offs=ends_E) for weight_EFD in (self.w1_EFD, self.w3_EFD)
        )
        return self._grouped_mm(A=F.silu(gate_RF) * up_RF, B_t=self.w2_EDF.mT, offs=ends_E)


def sharded(config: ModelConfig) -> Any:
    """Random weights, cut over all ranks by torchtitan's own policy: a block at a time, as ours."""
    set_spmd_backend("partial_dtensor")  # its name for FSDP2 without further axes
    with torch.device("meta"):
        model = _shape(config).build()
    for block in model.layers.values():
        block.moe.routed_experts.inner_experts.__class__ = PlainExperts
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    apply_fsdp_to_decoder(model, mesh, param_dtype=torch.float32, reduce_dtype=torch.float32, pp_enabled=False)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights()
    return model.train()


def _shape(config: ModelConfig) -> qwen3.Qwen3Model.Config:
    layers = qwen3._build_qwen3_moe_layers(
        n_layers=config.layers, dim=config.width, n_heads=config.heads, n_kv_heads=config.kv_heads,
        head_dim=config.head_width, moe_hidden_dim=config.expert_width, num_experts=config.experts,
        top_k=config.experts_per_token, fuse_qkv=False, attn_backend="varlen", moe_comm_backend="standard",
        rope=CosSinRoPE.Config(dim=config.head_width, max_seq_len=config.max_context, theta=config.rope_theta),
    )  # fmt: skip
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        layer.moe.load_balance_coeff = None  # no rival balances
    width, vocabulary = config.width, config.vocab_size
    return qwen3.Qwen3Model.Config(
        vocab_size=vocabulary, dim=width, layers=layers, norm=qwen3._qwen3_norm(width), enable_weight_tying=True,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=qwen3._EMBEDDING_SKIP_INIT
        ),
        lm_head=Linear.Config(in_features=width, out_features=vocabulary, param_init=qwen3._LINEAR_INIT),
    )  # fmt: skip

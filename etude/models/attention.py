"""Self-attention of a block, grouped-query or latent, over an `Attention` it is given.

Owns the projections, norms and rotations of queries, keys and values. Never knows *what* a token may see: that is the
business of the `Attention`, packed segments here (for the trainer), a paged cache in the engine.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from etude.kernels.choice import HOST, Placement
from etude.models.config import ModelConfig
from etude.models.layers import Layer, RMSNorm
from etude.models.rope import Rope, halves, logit_scale

LATENT_EPS = 1e-6
"""Of the norms inside latent attention; the published models have no key for it."""


class Attention(Protocol):
    """How packed tokens see each other."""

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        """softmax(scale * q k) v of each token over what it may see, causally; rotary positions are already applied.
        Returns [N, H, V]; values may be narrower than keys.
        """
        ...


class GroupedAttention(Layer):
    """Grouped-query attention (arXiv 2305.13245), with normed heads or biases if the config says so."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.scale = config.head_width**-0.5
        self.q_proj = nn.Linear(config.width, config.heads * config.head_width, config.qkv_bias)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_width, config.qkv_bias)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_width, config.qkv_bias)
        self.o_proj = nn.Linear(config.heads * config.head_width, config.width, bias=False)
        self.q_norm = RMSNorm(config.head_width, config.norm_eps) if config.head_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_width, config.norm_eps) if config.head_norm else nn.Identity()

    def forward(self, x_ND: Tensor, rope: Rope, layer: int, attention: Attention) -> Tensor:
        tokens = x_ND.shape[0]
        q = self.q_norm(self._projected(x_ND, self.q_proj).view(tokens, self.heads, self.head_width))
        k = self.k_norm(self._projected(x_ND, self.k_proj).view(tokens, self.kv_heads, self.head_width))
        v = self._projected(x_ND, self.v_proj).view(tokens, self.kv_heads, self.head_width)
        q, k = self.kernels.rotate(q, *rope), self.kernels.rotate(k, *rope)
        out = attention.attend(layer, q, k, v, self.scale)
        return self.kernels.linear(out.reshape(tokens, -1), self.o_proj.weight)

    def _projected(self, x_ND: Tensor, linear: nn.Linear) -> Tensor:
        out = self.kernels.linear(x_ND, linear.weight)
        return out if linear.bias is None else out + linear.bias


class LatentAttention(Layer):
    """Multi-head latent attention (arXiv 2405.04434) in its absorbed form, for training and sampling alike.

    The up-projections of keys and values are applied to the queries and to the result instead. So every head attends
    to the same one key a token, its latent beside its rotary channels, and the latent is the value.
    Shapes: R latent width, P plain and V value channels of a head. Submodules have their published names.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.latent is not None
        self.heads, self.latent = config.heads, config.latent
        rank, head_width = self.latent.rank, self.latent.plain_width + self.latent.rope_width
        self.scale = head_width**-0.5 * logit_scale(config.yarn)
        if self.latent.query_rank is None:
            self.q_proj = nn.Linear(config.width, config.heads * head_width, bias=False)
        else:
            self.q_a_proj = nn.Linear(config.width, self.latent.query_rank, bias=False)
            self.q_a_layernorm = RMSNorm(self.latent.query_rank, LATENT_EPS)
            self.q_b_proj = nn.Linear(self.latent.query_rank, config.heads * head_width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(config.width, rank + self.latent.rope_width, bias=False)
        self.kv_a_layernorm = RMSNorm(rank, LATENT_EPS)
        up_width = self.latent.plain_width + self.latent.value_width
        self.kv_b_proj = nn.Linear(rank, config.heads * up_width, bias=False)
        self.o_proj = nn.Linear(config.heads * self.latent.value_width, config.width, bias=False)

    def forward(self, x_ND: Tensor, rope: Rope, layer: int, attention: Attention) -> Tensor:
        shape, tokens = self.latent, x_ND.shape[0]
        q_NHC = self._queries(x_ND).view(tokens, self.heads, -1)
        plain_NHP, turning_NHC = q_NHC.split((shape.plain_width, shape.rope_width), dim=-1)
        narrow = self.kernels.linear(x_ND, self.kv_a_proj_with_mqa.weight)
        latent_NR, turning_NC = narrow.split((shape.rank, shape.rope_width), dim=-1)
        up = self.kv_b_proj.weight.view(self.heads, -1, shape.rank)
        key_up_HPR, value_up_HVR = up.split((shape.plain_width, shape.value_width), dim=1)
        absorbed_NHR = self.kernels.products(plain_NHP, key_up_HPR, self.kv_b_proj.weight)
        q = torch.cat((absorbed_NHR, self._turn(turning_NHC, rope)), dim=-1)
        v_N1R = self.kv_a_layernorm(latent_NR)[:, None]
        k = torch.cat((v_N1R, self._turn(turning_NC[:, None], rope)), dim=-1)
        out_NHR = attention.attend(layer, q, k, v_N1R, self.scale)
        out_NHV = self.kernels.products(out_NHR, value_up_HVR.mT, self.kv_b_proj.weight)
        return self.kernels.linear(out_NHV.reshape(tokens, -1), self.o_proj.weight)

    def _queries(self, x_ND: Tensor) -> Tensor:
        if self.latent.query_rank is None:
            return self.kernels.linear(x_ND, self.q_proj.weight)
        narrow = self.q_a_layernorm(self.kernels.linear(x_ND, self.q_a_proj.weight))
        return self.kernels.linear(narrow, self.q_b_proj.weight)

    def _turn(self, x_NHC: Tensor, rope: Rope) -> Tensor:
        return self.kernels.rotate(halves(x_NHC) if self.latent.interleaved else x_NHC, *rope)


class PackedAttention:
    """Causal attention inside each segment of a packed axis; segments never see each other."""

    def __init__(self, segment_lengths: list[int], placement: Placement = HOST) -> None:
        """`placement` is the decoder's (`Decoder.placement`)."""
        self._segments = placement.kernels.segments(segment_lengths, placement.device)

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        del layer
        return self._segments.attend(q_NHC, k_NGC, v_NGV, scale)

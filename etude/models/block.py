"""One block of a decoder: attention, then a feed-forward, each normed before and added to what comes in.

Owns `Block`, which the decoder stacks, and `FurtherToken`, the layer behind the last block that predicts one token
further (multi-token prediction, arXiv 2412.19437, section 2.2). Never embeds tokens nor turns hidden states into logits
(`models.decoder`), which both share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.models.attention import Attention, GroupedAttention, LatentAttention
from etude.models.config import ModelConfig
from etude.models.experts import MixtureOfExperts, Routed
from etude.models.layers import Layer, RMSNorm, SwiGLU
from etude.models.rope import Rope


class Block(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.routes = config.routes(layer)
        self.input_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = LatentAttention(config) if config.latent else GroupedAttention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MixtureOfExperts(config) if self.routes else SwiGLU(config.width, config.dense_width)

    def forward(
        self, x_ND: Tensor, rope: Rope, attention: Attention, replay_NK: Tensor | None, replay_margin: float
    ) -> tuple[Tensor, Routed | None]:
        x_ND = x_ND + self.attention(self.input_norm(x_ND), rope, self.layer, attention)
        if not self.routes:
            return x_ND + self.mlp(self.mlp_norm(x_ND)), None
        out_ND, routed = self.mlp(self.mlp_norm(x_ND), replay_NK, replay_margin)
        return x_ND + out_ND, routed


class FurtherToken(Layer):
    """A block over what the decoder made of a token, joined with the token that comes next. Its attention is over such
    pairs; a pair has the position of its first token.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.token_norm = RMSNorm(config.width, config.norm_eps)
        self.hidden_norm = RMSNorm(config.width, config.norm_eps)
        self.join = nn.Linear(2 * config.width, config.width, bias=False)
        self.block = Block(config, config.layers)
        self.norm = RMSNorm(config.width, config.norm_eps)

    def forward(
        self, next_ND: Tensor, hidden_ND: Tensor, rope: Rope, attention: Attention
    ) -> tuple[Tensor, Routed | None]:
        """`next_ND` are embeddings; returns hidden states before `norm`, which stand for the pairs' second tokens."""
        joined_ND = torch.cat((self.token_norm(next_ND), self.hidden_norm(hidden_ND)), dim=-1)
        return self.block(self.kernels.linear(joined_ND, self.join.weight), rope, attention, None, float("inf"))

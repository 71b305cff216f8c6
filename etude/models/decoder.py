"""The decoder: one forward shared by the trainer, the sampler and the evaluator.

Owns the pre-norm transformer that the published families are shapes of: a block is self-attention (grouped-query or
latent, `models.attention`) and a feed-forward (dense or a mixture of experts, `models.experts`), which ones the
`ModelConfig` says. Never knows about batches, caches or losses: tokens come as one packed axis, and *how* a token
attends to others is the business of the `Attention` it is given.

Shapes: N packed tokens, D model width, H query heads, G key-value heads, C head width, E experts, K experts a token,
F expert width, V vocabulary, L layers that have a router.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from etude.kernels.choice import Placement
from etude.kernels.interface import Kernels
from etude.models.attention import Attention
from etude.models.block import Block, FurtherToken
from etude.models.config import ModelConfig
from etude.models.experts import ExpertProduct, MixtureOfExperts, Routed
from etude.models.layers import Layer, RMSNorm
from etude.models.rope import rope_tables


class Routing(NamedTuple):
    """What the routers of one forward did."""

    experts_NLK: Tensor  # int64
    scores_NLE: Tensor  # fp32


class DecoderOutput(NamedTuple):
    hidden_ND: Tensor  # after the final norm
    routing: Routing


class Decoder(Layer):
    """Token ids in, hidden states and routes out; `logits` turns the hidden states one needs into fp32 logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.further = FurtherToken(config) if config.further_token else None
        self.head = None if config.tie_embeddings else nn.Linear(config.width, config.vocab_size, bias=False)
        self.computes_in: torch.dtype | None = None
        """What blocks compute in, whatever the weights are kept in; None: in that. Routers and logits stay in fp32. The
        exact kernels know fp32 alone."""

    def _embedded(self, token_ids_N: Tensor) -> Tensor:
        x_ND = self.embed(token_ids_N)
        return x_ND if self.computes_in is None else x_ND.to(self.computes_in)

    def forward(
        self,
        token_ids_N: Tensor,
        positions_N: Tensor,
        attention: Attention,
        replay_NLK: Tensor | None = None,
        replay_margin: float = float("inf"),
        recompute: bool = False,
    ) -> DecoderOutput:
        """`replay_NLK` forces experts, plausible ones (see `MixtureOfExperts`); -1 leaves the router's own choice. With
        `recompute` a backward keeps only what goes into each block, and computes the block once more.
        """
        x_ND = self._embedded(token_ids_N)
        rope = rope_tables(positions_N, self.config, self.kernels)
        done: list[Routed] = []
        for block in self.blocks:
            replay_NK = replay_NLK[:, len(done)] if replay_NLK is not None and block.routes else None
            given = (x_ND, rope, attention, replay_NK, replay_margin)
            if recompute and torch.is_grad_enabled():
                x_ND, routed = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                x_ND, routed = block(*given)
            if routed is not None:
                done.append(routed)
        return DecoderOutput(self.norm(x_ND), self._routing(done, token_ids_N))

    def _routing(self, done: list[Routed], token_ids_N: Tensor) -> Routing:
        if done:
            return Routing(
                torch.stack([routed.experts_NK for routed in done], 1),
                torch.stack([routed.scores_NE for routed in done], 1),
            )
        none = token_ids_N.new_zeros((len(token_ids_N), 0, self.config.experts_per_token))
        return Routing(none, none.float())

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """fp32 logits [M, V] of the rows asked for."""
        weight = self.embed.weight if self.head is None else self.head.weight
        return self.kernels.linear(hidden_MD.float(), weight)

    def look_further(
        self, next_ids_N: Tensor, hidden_ND: Tensor, positions_N: Tensor, attention: Attention
    ) -> tuple[Tensor, Routed | None]:
        """What predicts the token after the next, and what its router did. `hidden_ND` is the forward's, or, to look
        further still, what this returned for the pair before; `further_logits` is for its rows.
        """
        assert self.further is not None
        return self.further(
            self._embedded(next_ids_N), hidden_ND, rope_tables(positions_N, self.config, self.kernels), attention
        )

    def further_logits(self, hidden_MD: Tensor) -> Tensor:
        """fp32 logits [M, V] of what `look_further` returned."""
        assert self.further is not None
        return self.logits(self.further.norm(hidden_MD))

    def place(self, placement: Placement) -> Decoder:
        """Compute there and so from now on; returns itself. To be called before anybody holds its parameters."""
        self.compute_with(placement.kernels)
        return self.to(placement.device)

    def compute_with(self, kernels: Kernels) -> None:
        """Use these from now on, where its parameters are."""
        for module in self.modules():
            if isinstance(module, Layer):
                module.kernels = kernels

    @property
    def placement(self) -> Placement:
        """Where all that goes in must lie."""
        return Placement(self.kernels, self.embed.weight.device)

    def set_expert_product(self, product: ExpertProduct) -> None:
        """Multiply tokens with their experts' matrices in this way from now on (`kernels.low_precision`)."""
        for module in self.modules():
            if isinstance(module, MixtureOfExperts):
                module.product = product

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal(0, 0.02), output projections scaled down by depth (GPT-2's rule); norms start at one."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = 0.02 / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = residual_std if name.endswith(("o_proj.weight", ".down", ".down.weight")) else 0.02
                parameter.normal_(0.0, std, generator=generator)

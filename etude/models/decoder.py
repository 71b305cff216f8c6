"""The decoder: one forward shared by the trainer, the sampler and the evaluator.

Owns the mixture-of-experts transformer of the Qwen3-MoE family (arXiv 2505.09388): pre-norm blocks, grouped-query
attention with RMS-normed queries and keys, rotary positions, a softmax top-k router computed in fp32, SwiGLU experts,
tied embeddings. Never knows about batches, caches or losses: tokens come as one packed axis, and *how* a token attends
to others is the business of the `Attention` it is given (packed segments in the trainer, a paged cache in the engine).

Shapes: N packed tokens, D model width, H query heads, G key-value heads, C head width, E experts, K experts a token,
F expert width, V vocabulary, L layers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from etude.config import Config


class ModelConfig(Config):
    """The shape of a decoder. Field names are ours; `models.qwen3` maps them to the published config.json."""

    vocab_size: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 32
    experts: int = 8
    experts_per_token: int = 2
    expert_width: int = 128
    normalise_gates: bool = True
    """Scale the chosen experts' gates to sum to one (`norm_topk_prob`)."""
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    max_context: int = 1024
    """Longest context the model was trained for, in tokens."""


class Attention(Protocol):
    """How packed tokens see each other."""

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGC: Tensor) -> Tensor:
        """Causal attention of each token over what it may see; rotary positions are already applied. Returns [N, H,
        C].
        """
        ...


class Routing(NamedTuple):
    """What the routers of one forward did."""

    experts_NLK: Tensor  # int64
    logits_NLE: Tensor  # fp32


class DecoderOutput(NamedTuple):
    hidden_ND: Tensor  # after the final norm
    routing: Routing


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.q_proj = nn.Linear(config.width, config.heads * config.head_width, bias=False)
        self.k_proj = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.v_proj = nn.Linear(config.width, config.kv_heads * config.head_width, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_width, config.width, bias=False)
        self.q_norm = RMSNorm(config.head_width, config.norm_eps)
        self.k_norm = RMSNorm(config.head_width, config.norm_eps)

    def forward(self, x_ND: Tensor, rope: tuple[Tensor, Tensor], layer: int, attention: Attention) -> Tensor:
        tokens = x_ND.shape[0]
        q = self.q_norm(self.q_proj(x_ND).view(tokens, self.heads, self.head_width))
        k = self.k_norm(self.k_proj(x_ND).view(tokens, self.kv_heads, self.head_width))
        v = self.v_proj(x_ND).view(tokens, self.kv_heads, self.head_width)
        out = attention.attend(layer, rotate(q, rope), rotate(k, rope), v)
        return self.o_proj(out.reshape(tokens, -1))


class MixtureOfExperts(nn.Module):
    """Top-k routed SwiGLU experts. Weights of all experts are stacked, so one tensor is one optimizer parameter."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.experts_per_token = config.experts_per_token
        self.normalise_gates = config.normalise_gates
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(config.experts, config.width, 2 * config.expert_width))
        self.down = nn.Parameter(torch.empty(config.experts, config.expert_width, config.width))

    def forward(self, x_ND: Tensor, replay_NK: Tensor | None, replay_margin: float) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the output [N, D], the experts used [N, K] and the router's logits [N, E].

        With `replay_NK` the given experts are used in place of the router's own choice, where they are >= 0; gates, and
        so gradients, still come from the present router (router replay, arXiv 2510.11370). A token one of whose
        replayed experts scores more than `replay_margin` below the router's own last choice keeps the router's choice.
        """
        logits_NE = F.linear(
            x_ND.float(), self.router.weight.float()
        )  # fp32: ties and near-ties must not depend on dtype
        own_NK, experts_NK = logits_NE.topk(self.experts_per_token, dim=-1)
        if replay_NK is not None:
            scores_NK = logits_NE.detach().gather(1, replay_NK.clamp(min=0))
            plausible_NK = (replay_NK >= 0) & (scores_NK >= own_NK[:, -1:] - replay_margin)
            # whole tokens: one replayed and one own expert might be the same expert twice
            experts_NK = torch.where(plausible_NK.all(dim=1, keepdim=True), replay_NK, experts_NK)
        gates_NK = logits_NE.softmax(dim=-1).gather(1, experts_NK)
        if self.normalise_gates:
            gates_NK = gates_NK / gates_NK.sum(dim=-1, keepdim=True)
        out_ND = run_experts(x_ND, experts_NK, gates_NK.to(x_ND.dtype), self.gate_up, self.down)
        return out_ND, experts_NK, logits_NE


def run_experts(x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
    """Send each token through its experts and add the results, weighted by the gates. Tokens are grouped by expert."""
    top_k = experts_NK.shape[1]
    by_expert = experts_NK.flatten().argsort(stable=True)
    token_of = by_expert // top_k
    counts = torch.bincount(experts_NK.flatten(), minlength=gate_up_EDF.shape[0]).tolist()
    outputs = []
    for expert, rows in enumerate(x_ND[token_of].split(counts)):
        if len(rows):
            gate, up = (rows @ gate_up_EDF[expert]).chunk(2, dim=-1)
            outputs.append((F.silu(gate) * up) @ down_EFD[expert])
    weighted = torch.cat(outputs) * gates_NK.flatten()[by_expert, None]
    return torch.zeros_like(x_ND).index_add(0, token_of, weighted)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.width, config.norm_eps)
        self.attention = SelfAttention(config)
        self.mlp_norm = RMSNorm(config.width, config.norm_eps)
        self.mlp = MixtureOfExperts(config)

    def forward(
        self,
        x_ND: Tensor,
        rope: tuple[Tensor, Tensor],
        layer: int,
        attention: Attention,
        replay_NK: Tensor | None,
        replay_margin: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x_ND = x_ND + self.attention(self.input_norm(x_ND), rope, layer, attention)
        out_ND, experts_NK, logits_NE = self.mlp(self.mlp_norm(x_ND), replay_NK, replay_margin)
        return x_ND + out_ND, experts_NK, logits_NE


class Decoder(nn.Module):
    """Token ids in, hidden states and routes out; `logits` turns the hidden states one needs into fp32 logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(
        self,
        token_ids_N: Tensor,
        positions_N: Tensor,
        attention: Attention,
        replay_NLK: Tensor | None = None,
        replay_margin: float = float("inf"),
    ) -> DecoderOutput:
        """`replay_NLK` forces experts, plausible ones (see `MixtureOfExperts`); -1 leaves the router's own choice."""
        x_ND = self.embed(token_ids_N)
        rope = rope_tables(positions_N, self.config.head_width, self.config.rope_theta, x_ND.dtype)
        experts, logits = [], []
        for layer, block in enumerate(self.blocks):
            replay = None if replay_NLK is None else replay_NLK[:, layer]
            x_ND, experts_NK, logits_NE = block(x_ND, rope, layer, attention, replay, replay_margin)
            experts.append(experts_NK)
            logits.append(logits_NE)
        return DecoderOutput(self.norm(x_ND), Routing(torch.stack(experts, 1), torch.stack(logits, 1)))

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """fp32 logits [M, V] of the rows asked for."""
        weight = self.embed.weight if self.head is None else self.head.weight
        return F.linear(hidden_MD.float(), weight.float())

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Normal(0, 0.02), output projections scaled down by depth (GPT-2's rule); norms start at one."""
        generator = torch.Generator().manual_seed(seed)
        residual_std = 0.02 / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                std = residual_std if name.endswith(("o_proj.weight", "mlp.down")) else 0.02
                parameter.normal_(0.0, std, generator=generator)


def rope_tables(positions_N: Tensor, width: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, C] of the rotary embedding (arXiv 2104.09864), computed in fp32."""
    inverse = theta ** (-torch.arange(0, width, 2, dtype=torch.float32, device=positions_N.device) / width)
    angles = positions_N.float()[:, None] * inverse
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x_NHC: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    first, second = x_NHC.chunk(2, dim=-1)
    return x_NHC * cos + torch.cat((-second, first), dim=-1) * sin


class PackedAttention:
    """Causal attention inside each segment of a packed axis; segments never see each other."""

    def __init__(self, segment_lengths: list[int]) -> None:
        self.lengths = segment_lengths

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGC: Tensor) -> Tensor:
        del layer
        outputs = [
            F.scaled_dot_product_attention(
                q.transpose(0, 1)[None],
                k.transpose(0, 1)[None],
                v.transpose(0, 1)[None],
                is_causal=True,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for q, k, v in zip(
                q_NHC.split(self.lengths), k_NGC.split(self.lengths), v_NGC.split(self.lengths), strict=True
            )
        ]
        return torch.cat(outputs)

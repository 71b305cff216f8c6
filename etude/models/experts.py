"""The mixture-of-experts feed-forward: which experts a token goes to, with which gates, and the experts themselves.

Owns routing (fp32; softmax, or sigmoid with a selection bias and limited groups), router replay and the shared experts.
Does not know which layer it is in. Shapes: K experts a token, E experts, F expert width.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from etude.kernels.torch_kernels import Choices
from etude.models.config import ModelConfig
from etude.models.layers import Layer, SwiGLU


class Routed(NamedTuple):
    """What one router did."""

    experts_NK: Tensor  # int64
    scores_NE: Tensor  # fp32: the softmax's probabilities or the sigmoids, before any bias


class ExpertProduct(Protocol):
    """How rows that are sorted by expert are multiplied with their experts' matrices."""

    def __call__(self, rows_MK: Tensor, weight_EKN: Tensor, counts_E: Tensor) -> Tensor:
        """[M, N] from rows [M, K], the first counts[0] of which are the first expert's, and matrices [E, K, N]."""
        ...


class MixtureOfExperts(Layer):
    """Top-k routed SwiGLU experts. Weights of all experts are stacked, so one tensor is one optimizer parameter.

    `selection_bias` is a buffer: it is set by whoever made the checkpoint, stays fp32 and learns from no gradient.
    """

    selection_bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        if config.router == "sigmoid":
            self.register_buffer("selection_bias", torch.zeros(config.experts))
        self.gate_up = nn.Parameter(torch.empty(config.experts, config.width, 2 * config.expert_width))
        self.down = nn.Parameter(torch.empty(config.experts, config.expert_width, config.width))
        self.product: ExpertProduct | None = None
        self.shared = SwiGLU(config.width, config.shared_width) if config.shared_width else None

    def forward(self, x_ND: Tensor, replay_NK: Tensor | None, replay_margin: float) -> tuple[Tensor, Routed]:
        """With `replay_NK` the given experts are used in place of the router's own choice, where they are >= 0; gates,
        and so gradients, still come from the present router (router replay, arXiv 2510.11370). A replayed expert is
        implausible, and replaced by the best of the router's own that the token does not have yet, if with
        `replay_margin` more in its logit it would still lose to the router's own last choice.
        """
        logits_NE = self.kernels.linear(x_ND.float(), self.router.weight)  # fp32: near-ties must not depend on dtype
        gates_NK, routed = self.route(logits_NE, replay_NK, replay_margin)
        run = self.kernels.run_experts if self.product is None else partial(run_by_product, self.product)
        out_ND = run(x_ND, routed.experts_NK, gates_NK, self.gate_up, self.down)
        if self.shared is not None:
            out_ND = out_ND + self.shared(x_ND)
        return out_ND, routed

    def route(
        self, logits_NE: Tensor, replay_NK: Tensor | None = None, replay_margin: float = math.inf
    ) -> tuple[Tensor, Routed]:
        """From the router's logits to gates [N, K] and what they are of."""
        if self.config.router == "softmax":
            scores_NE, choice_NE = logits_NE.softmax(dim=-1), logits_NE
        else:
            scores_NE = self.kernels.sigmoid(logits_NE)
            choice_NE = self._of_best_groups(scores_NE + self.selection_bias)
        own_NK, experts_NK = choice_NE.topk(self.config.experts_per_token, dim=-1)
        if replay_NK is not None:
            plausible_NK = self._plausible(logits_NE.detach(), replay_NK, own_NK[:, -1:].detach(), replay_margin)
            experts_NK = replayed(replay_NK, plausible_NK, choice_NE.detach())
        gates_NK = scores_NE.gather(1, experts_NK)
        if self.config.normalise_gates:
            gates_NK = gates_NK / gates_NK.cumsum(dim=-1)[:, -1:]  # a sum in their order
        if self.config.gate_scale != 1.0:
            gates_NK = gates_NK * self.config.gate_scale
        return gates_NK, Routed(experts_NK, scores_NE)

    def _of_best_groups(self, choice_NE: Tensor) -> Tensor:
        """Minus infinity for experts outside the groups whose two best add up to most."""
        if self.config.groups_per_token == self.config.expert_groups:
            return choice_NE
        grouped_NGE = choice_NE.unflatten(-1, (self.config.expert_groups, -1))
        promise_NG = grouped_NGE.topk(2, dim=-1).values.sum(dim=-1)
        best = promise_NG.topk(self.config.groups_per_token, dim=-1).indices
        left_out_NG = torch.ones_like(promise_NG, dtype=torch.bool).scatter(1, best, False)
        return grouped_NGE.masked_fill(left_out_NG[..., None], -math.inf).flatten(1)

    def _plausible(self, logits_NE: Tensor, replay_NK: Tensor, last_N1: Tensor, margin: float) -> Tensor:
        """Which replayed experts are given and could have been chosen."""
        given_NK, experts_NK = replay_NK >= 0, replay_NK.clamp(min=0)
        if margin == math.inf:
            return given_NK
        raised_NK = logits_NE.gather(1, experts_NK) + margin
        if self.config.router == "sigmoid":
            raised_NK = raised_NK.sigmoid() + self.selection_bias[experts_NK]
        return given_NK & (raised_NK >= last_N1)


def replayed(replay_NK: Tensor, keep_NK: Tensor, choice_NE: Tensor) -> Tensor:
    """The experts to keep and, in place of the others, those that a token's router ranks best among the rest."""
    whole_N1 = keep_NK.all(dim=1, keepdim=True)
    kept_NE = torch.zeros_like(choice_NE).scatter_add(1, replay_NK.clamp(min=0), keep_NK.to(choice_NE.dtype)) > 0
    filled_NK = choice_NE.masked_fill(kept_NE, math.inf).topk(replay_NK.shape[1], dim=-1).indices
    return torch.where(whole_N1, replay_NK, filled_NK)  # replayed experts keep their order: gates are added up in it


def run_by_product(
    product: ExpertProduct,
    x_ND: Tensor,
    experts_NK: Tensor,
    gates_NK: Tensor,
    gate_up_EDF: Tensor,
    down_EFD: Tensor,
) -> Tensor:
    """`Kernels.run_experts` with a product of one's own: a token's bits depend on who shares its experts."""
    chosen = Choices.of(experts_NK, len(gate_up_EDF))
    counts_E = chosen.ends_E.diff(prepend=chosen.ends_E.new_zeros(1))
    token_S = chosen.order_S // chosen.top_k
    gate, up = product(x_ND[token_S], gate_up_EDF, counts_E).chunk(2, dim=-1)
    outputs = product(F.silu(gate) * up, down_EFD, counts_E)
    weighted = outputs * gates_NK.to(x_ND.dtype).flatten()[chosen.order_S, None]
    return torch.zeros_like(x_ND).index_add(0, token_S, weighted)


def multiply_by_expert(rows_MK: Tensor, weight_EKN: Tensor, counts_E: Tensor) -> Tensor:
    """The plainest `ExpertProduct`, in the operands' own dtype, expert by expert: what others are compared with."""
    parts = rows_MK.split(counts_E.tolist())
    return torch.cat([part @ weight_EKN[expert] for expert, part in enumerate(parts) if len(part)])

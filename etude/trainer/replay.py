"""Router replay as the trainer sees it: routes that come with a batch, checked, handed to the decoder, and counted.

Owns what makes a batch's routes fit to be replayed, and the figures that show they were. Never chooses an expert: the
decoder replays them, and its plausibility filter replaces some (`models.experts`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.errors import EtudeError
from etude.kernels.devices import put
from etude.models.config import ModelConfig
from etude.records import Batch
from etude.trainer.losses import Figure

REMEDY = "let the engine return the routes of this model, or set trainer.router_replay = false"


def require_routes(batch: Batch, model: ModelConfig) -> None:
    """Every position that predicts a sampled token has routes that this model could have taken. Raises EtudeError."""
    predicting = np.flatnonzero(batch.loss_mask) - 1
    missing = int((~batch.routed_mask[predicting]).sum())
    if missing:
        raise EtudeError(
            f"router replay is on, but {missing} of {len(predicting)} positions that predict a sampled token "
            f"have no routes: {REMEDY}"
        )
    shape, wanted = batch.routed_experts.shape[1:], (len(model.moe_layers), model.experts_per_token)
    if shape != wanted:
        raise EtudeError(f"routes are of {shape} (layers, experts a token), the model's of {wanted}: {REMEDY}")
    routes = np.sort(batch.routed_experts[batch.routed_mask], axis=-1)
    if routes[..., -1].max() >= model.experts:
        raise EtudeError(f"routes name expert {routes.max()}, the model has {model.experts}: {REMEDY}")
    if twice := int((routes[..., 1:] == routes[..., :-1]).any(axis=-1).sum()):
        raise EtudeError(
            f"{twice} routes name an expert twice (a kernel that writes no routes leaves them all zero): {REMEDY}"
        )


def replayed_routes(piece: Batch, device: torch.device) -> Tensor:
    """[N, L, K] for the decoder, -1 where the sampler gave none."""
    routes_NLK = put(piece.routed_experts, device).long()
    return torch.where(put(piece.routed_mask, device)[:, None, None], routes_NLK, -1)


def replay_counts(replay_NLK: Tensor, experts_NLK: Tensor) -> dict[str, Figure]:
    """Routes and experts that were given, those that the router would have chosen itself among them; and how many of
    these experts the decoder did not use.
    """
    given_NL = (replay_NLK >= 0).all(-1)
    used_NLK = (replay_NLK[..., :, None] == experts_NLK[..., None, :]).any(-1)
    return {
        "routes": float(given_NL.numel()),
        "routes_given": given_NL.sum(),
        "experts_given": given_NL.sum() * replay_NLK.shape[-1],
        "experts_replaced": (given_NL[..., None] & ~used_NLK).sum(),
    }

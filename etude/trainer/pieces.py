"""A piece of a batch where the policy is: what one forward and backward read, put there before they begin.

Owns `Piece` and its forward. All shapes, lengths and places follow from the packing, which the host has: a forward asks
the device for none of them. Never knows of losses or optimizers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.kernels.choice import Placement
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder, DecoderOutput
from etude.records import Batch
from etude.trainer.activations import recomputes_blocks, sampled_logprobs
from etude.trainer.config import TrainerConfig
from etude.trainer.packing import segment_lengths
from etude.trainer.replay import replayed_routes


class Piece(NamedTuple):
    """N tokens of M segments, of which S were sampled."""

    token_ids_N: Tensor
    positions_N: Tensor
    attention: PackedAttention
    replay_NLK: Tensor | None
    """The routes to take; None: the router's own."""
    sampled_S: Tensor
    """Where the sampled tokens are."""
    behaviour_S: Tensor
    """Log-probabilities by whatever sampled them."""
    advantages_S: Tensor
    segments_S: Tensor
    """Which segment each is of, counted from 0 within the piece."""
    first: int
    """The number of the first of these in the batch."""
    segments: int
    """M, of those with a sampled token."""

    @classmethod
    def of(cls, piece: Batch, placement: Placement, replays: bool) -> Piece:
        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(placement.device)

        sampled = np.flatnonzero(piece.loss_mask)
        numbers = piece.segment_ids[sampled].astype(np.int64)
        return cls(
            put(piece.token_ids).long(),
            put(piece.positions),
            PackedAttention(segment_lengths(piece), placement),
            replayed_routes(piece, placement.device) if replays else None,
            put(sampled),
            put(piece.behaviour_logprobs[sampled]),
            put(piece.advantages[sampled]),
            put(numbers - numbers[0]),
            int(numbers[0]),
            int(numbers[-1] - numbers[0]) + 1,
        )

    def run(
        self, policy: Decoder, config: TrainerConfig, temperature: float, replay: bool = True
    ) -> tuple[DecoderOutput, Tensor, Tensor]:
        """The forward's output, and of the sampled tokens their log-probabilities [S] and entropies [S]. Without
        `replay` experts are those that the policy would choose itself.
        """
        ids, routes = self.token_ids_N, self.replay_NLK if replay else None
        recompute = recomputes_blocks(policy.config, len(ids))
        output = policy(ids, self.positions_N, self.attention, routes, config.replay_margin, recompute)
        hidden_SD = output.hidden_ND.index_select(0, self.sampled_S - 1)
        said = ids.index_select(0, self.sampled_S)
        return output, *sampled_logprobs(policy, hidden_SD, said, temperature, config.loss.trains_entropy)


def on_policy(piece: Batch) -> np.ndarray:
    """Of the sampled tokens, the places of those that the version trained on sampled, with a cache that no older one
    wrote.
    """
    ages, segments = piece.ages[piece.loss_mask], piece.segment_ids[piece.loss_mask]
    _, first, segment_of = np.unique(segments, return_index=True, return_inverse=True)
    return np.flatnonzero((ages == 0) & (ages[first][segment_of] == 0))

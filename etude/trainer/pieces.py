"""A piece of a batch where the policy is: what one forward and backward read, put there before they begin.

Owns `Piece` and its forward, and `Whole`, in whose place another may cut a piece over ranks (`mesh.context`). All
shapes, lengths and places follow from the packing, which the host has: a forward asks the device for none of them.
Never knows of losses or optimizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from etude.kernels.choice import Placement
from etude.kernels.devices import put
from etude.models.attention import Attention, PackedAttention
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder, DecoderOutput, Routing
from etude.records import Batch
from etude.trainer.activations import recomputes_blocks, sampled_logprobs
from etude.trainer.config import TrainerConfig
from etude.trainer.losses import Figure
from etude.trainer.packing import segment_lengths
from etude.trainer.replay import replay_counts, replayed_routes


class Whole:
    """Where the tokens of a piece are worked on: all of them here."""

    def own(self, array_N: np.ndarray, fill: Any = 0) -> np.ndarray:
        """What is worked on here of something that each token has, filled up where there are too few tokens."""
        del fill
        return array_N

    def attention(self, lengths: Sequence[int], placement: Placement) -> Attention:
        """Of the tokens here, over segments of these lengths."""
        return PackedAttention(list(lengths), placement)

    def own_rows(self, row_S: np.ndarray, tokens: int) -> tuple[slice, int]:
        """Which of these places, in order, are here, and the place that begins here, of so many tokens."""
        del row_S, tokens
        return slice(None), 0

    def join(self, values_R: Tensor, row_S: np.ndarray, tokens: int) -> Tensor:
        """Values of all places from those of the places here."""
        del row_S, tokens
        return values_R

    def real(self, tokens: int) -> slice:
        """Which of the tokens here are the piece's own, of so many in all."""
        del tokens
        return slice(None)

    def total(self, counts: dict[str, Figure]) -> dict[str, Figure]:
        """Counts over all tokens from counts over those here."""
        return counts

    def recomputes(self, model: ModelConfig, tokens: int) -> bool:
        """Whether blocks are computed once more in the backward."""
        return recomputes_blocks(model, tokens)


WHOLE = Whole()


class Piece(NamedTuple):
    """N tokens of M segments, of which S were sampled. Of each token's arrays there is what is worked on here."""

    token_ids_N: Tensor
    positions_N: Tensor
    attention: Attention
    replay_NLK: Tensor | None
    """The routes to take; None: the router's own."""
    row_S: np.ndarray
    """The places, in the whole piece, of what predicts the sampled tokens."""
    rows_R: Tensor
    """Those of them that are here, counted from the first token here."""
    said_R: Tensor
    """The sampled tokens that they predict."""
    behaviour_S: Tensor
    """Log-probabilities by whatever sampled them."""
    advantages_S: Tensor
    segments_S: Tensor
    """Which segment each is of, counted from 0 within the piece."""
    first: int
    """The number of the first of these in the batch."""
    segments: int
    """M, of those with a sampled token."""
    tokens: int
    """Of the whole piece."""
    context: Whole

    @classmethod
    def of(cls, piece: Batch, placement: Placement, replays: bool, context: Whole = WHOLE) -> Piece:
        def there(array: np.ndarray) -> Tensor:
            return put(array, placement.device)

        sampled = np.flatnonzero(piece.loss_mask)
        numbers = piece.segment_ids[sampled].astype(np.int64)
        tokens = len(piece.token_ids)
        here, begins = context.own_rows(sampled - 1, tokens)
        routed = piece
        if replays:
            given = {name: context.own(getattr(piece, name)) for name in ("routed_experts", "routed_mask")}
            routed = replace(piece, **given)
        return cls(
            there(context.own(piece.token_ids)).long(),
            there(context.own(piece.positions)),
            context.attention(segment_lengths(piece), placement),
            replayed_routes(routed, placement.device) if replays else None,
            sampled - 1,
            there(sampled[here] - 1 - begins),
            there(piece.token_ids[sampled[here]]).long(),
            there(piece.behaviour_logprobs[sampled]),
            there(piece.advantages[sampled]),
            there(numbers - numbers[0]),
            int(numbers[0]),
            int(numbers[-1] - numbers[0]) + 1,
            tokens,
            context,
        )

    def run(
        self, policy: Decoder, config: TrainerConfig, temperature: float, replay: bool = True
    ) -> tuple[DecoderOutput, Tensor, Tensor]:
        """The forward's output, and of the sampled tokens their log-probabilities [S] and entropies [S]. Without
        `replay` experts are those that the policy would choose itself.
        """
        routes = self.replay_NLK if replay else None
        recompute = self.context.recomputes(policy.config, self.tokens)
        output = policy(self.token_ids_N, self.positions_N, self.attention, routes, config.replay_margin, recompute)
        hidden_RD = output.hidden_ND.index_select(0, self.rows_R)
        said = sampled_logprobs(policy, hidden_RD, self.said_R, temperature, config.loss.trains_entropy)
        logps_S, entropies_S = (self.context.join(each, self.row_S, self.tokens) for each in said)
        return output, logps_S, entropies_S

    def replay_counts(self, routing: Routing) -> dict[str, Figure]:
        """What became of the routes that were given (`replay.replay_counts`)."""
        if self.replay_NLK is None:
            return {}
        real = self.context.real(self.tokens)
        return self.context.total(replay_counts(self.replay_NLK[real], routing.experts_NLK[real]))


def on_policy(piece: Batch) -> np.ndarray:
    """Of the sampled tokens, the places of those that the version trained on sampled, with a cache that no older one
    wrote.
    """
    ages, segments = piece.ages[piece.loss_mask], piece.segment_ids[piece.loss_mask]
    _, first, segment_of = np.unique(segments, return_index=True, return_inverse=True)
    return np.flatnonzero((ages == 0) & (ages[first][segment_of] == 0))


def segments_between(piece: Batch) -> int:
    """From the first segment with a sampled token to the last one: as many as a piece has figures of."""
    numbers = piece.segment_ids[piece.loss_mask]
    return int(numbers[-1]) - int(numbers[0]) + 1

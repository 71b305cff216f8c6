"""What a piece's backward would have to keep in memory, and how that is kept small for models that are not tiny.

Two things grow with a model and not with what is learnt from: the log-probabilities [S, V] of S sampled tokens over a
vocabulary, and what every block keeps of N tokens. The first are made some rows at a time, the second kept for one
block at a time; either is then computed once more in the backward (arXiv 1604.06174). Both give the values, and blocks
the gradients too, bit for bit: a row does not depend on its neighbours. What fits is kept, so that small models pay
nothing. Owns the limits. Never knows of losses.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from etude.models.config import ModelConfig
from etude.models.decoder import Decoder

VOCABULARY_BYTES = 64 * 2**20
"""Of one array [rows, V] of fp32. A few of them are alive at once."""
BLOCKS_BYTES = 2**30
"""What the blocks may keep of a piece, where engines and sandboxes want memory too."""
ALONE_BYTES = 2**31
"""The same of supervised training, which has its machine to itself."""


def sampled_logprobs(
    policy: Decoder, hidden_SD: Tensor, ids_S: Tensor, temperature: float, trains_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """The tokens' log-probabilities [S] and the entropies [S] of what they were drawn from, in nats. Entropies have a
    graph only where they are trained on.
    """

    def of(hidden_RD: Tensor, ids_R: Tensor) -> tuple[Tensor, Tensor]:
        logprobs_RV = torch.log_softmax(policy.logits(hidden_RD) / temperature, dim=-1)
        with torch.set_grad_enabled(trains_entropy and torch.is_grad_enabled()):
            entropies_R = -(logprobs_RV.exp() * logprobs_RV).sum(-1)
        return logprobs_RV.gather(1, ids_R[:, None]).squeeze(1), entropies_R

    logps_S, entropies_S = by_rows(policy, of, hidden_SD, ids_S)
    return logps_S, entropies_S


def by_rows(
    policy: Decoder, of: Callable[..., tuple[Tensor, ...]], *rows: Tensor, whole_on_host: bool = False
) -> tuple[Tensor, ...]:
    """What `of` makes of these rows, some at a time, as it has logits of them all: so many that these fit. The head's
    gradient, a sum over the parts, has other bits then: with `whole_on_host` kernels of the host take all at once.
    """
    most = max(1, VOCABULARY_BYTES // (4 * policy.config.vocab_size))
    if len(rows[0]) <= most or (whole_on_host and policy.kernels.on_host):
        return of(*rows)
    parts = [
        checkpoint(of, *some, use_reentrant=False, preserve_rng_state=False)
        for some in zip(*(each.split(most) for each in rows), strict=True)
    ]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def recomputes_blocks(
    config: ModelConfig, tokens: int, frozen: int = 0, width: int = 4, most: int | None = None
) -> bool:
    """Whether the blocks would keep more of so many tokens than `most` (`BLOCKS_BYTES`), in numbers of `width` bytes.
    Below the first that is trained, `frozen` many, they keep nothing.
    """
    heads = (config.heads + config.kv_heads) * config.head_width
    kept = sum(
        6 * config.width
        + 4 * heads
        + 4 * (config.experts_per_token * config.expert_width if config.routes(layer) else config.dense_width)
        for layer in range(frozen, config.layers)
    )
    return width * tokens * kept > (BLOCKS_BYTES if most is None else most)

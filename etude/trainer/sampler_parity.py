"""The check of trainer against sampler: recomputes log-probabilities with the very weights that sampled them.

A step compares the new policy with what older ones sampled, so that its own differences say how far the policy has
moved, and not whether trainer and sampler agree. This check keeps the policies of the last versions (2 bytes a
parameter each) and, every step, runs some tokens of the batch through the one that sampled them: with our own engine
the difference is 0. A recipe sizes it with `parity_tokens`; its metrics begin with `parity`. Owns those copies and
the choice of tokens. Never trains, and never touches the policy.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from etude.models.decoder import Decoder
from etude.records import Batch, Version
from etude.trainer.packing import segment_lengths, select_positions


class SamplerParityCheck:
    """`tokens` bounds what is recomputed a step, context included; `versions` how many are kept."""

    def __init__(self, tokens: int, versions: int) -> None:
        self.tokens, self.versions = tokens, versions
        self._kept: OrderedDict[Version, list[Tensor]] = OrderedDict()
        self._decoder: Decoder | None = None

    def remember(self, version: Version, policy: Decoder) -> None:
        """Keep a copy of a policy whose parameters are bf16 values."""
        if not self.tokens:
            return
        self._kept[version] = [parameter.detach().to(torch.bfloat16) for parameter in policy.parameters()]
        while len(self._kept) > self.versions:
            self._kept.popitem(last=False)

    def select(self, batch: Batch) -> tuple[Batch, Version] | None:
        """The beginnings of some segments, up to their first token of another version, and the one that sampled them;
        None when no older version that is kept sampled any. The newest is left to the step itself, which sees all of
        it.
        """
        spans: dict[Version, list[tuple[int, int]]] = {}
        start = 0
        for length in segment_lengths(batch):
            sampled = start + np.flatnonzero(batch.loss_mask[start : start + length])
            ages = batch.ages[sampled]
            version = Version(int(batch.version - ages[0]))
            if ages[0] and version in self._kept:
                alike = int((ages != ages[0]).argmax()) or len(ages)  # what follows was sampled from a mixed cache
                spans.setdefault(version, []).append((start, int(sampled[alike - 1]) + 1))
            start += length
        if not spans:
            return None
        version = max(spans, key=lambda each: len(spans[each]))
        positions = np.concatenate([np.arange(*span) for span in self._fitting(spans[version])])
        return select_positions(batch, positions), version

    def _fitting(self, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """As many as fit, the shortest first and at least one, in the batch's order."""
        ordered = sorted(spans, key=lambda span: span[1] - span[0])
        total = np.cumsum([end - start for start, end in ordered])
        return sorted(ordered[: max(1, int((total <= self.tokens).sum()))])

    def decoder(self, version: Version, like: Decoder) -> Decoder:
        """The policy of a kept version, in a decoder that is used again for the next."""
        if self._decoder is None:
            self._decoder = copy.deepcopy(like).requires_grad_(False)
            self._decoder.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, kept in zip(self._decoder.parameters(), self._kept[version], strict=True):
                parameter.copy_(kept)
        return self._decoder

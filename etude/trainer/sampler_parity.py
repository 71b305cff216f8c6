"""The check of trainer against sampler: recomputes log-probabilities with the very weights that sampled them.

A step compares the new policy with what older ones sampled, so that its own differences say how far the policy has
moved, and not whether trainer and sampler agree. This check keeps the policies of the last versions and, every step,
has some tokens of the batch go through the one that sampled them: with our own engine the difference is 0. The newest
is kept whole, 2 bytes a parameter; an older one by where it differs from the next, 6 bytes a difference, where that is
less. A recipe sizes the check with `parity_tokens`; its metrics begin with `parity`. Owns those copies and the choice
of tokens. Never trains; the policy is an older one only while `restored` lasts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.models.decoder import Decoder
from etude.records import Batch, Version
from etude.trainer.packing import segment_lengths, select_positions


class _Differences(NamedTuple):
    """What a tensor was before it changed, where it changed."""

    at: Tensor  # int32, into the tensor laid flat
    former: Tensor  # bf16

    @classmethod
    def between(cls, former: Tensor, new: Tensor) -> _Differences | Tensor:
        """They, or `former` itself where that takes less memory."""
        changed = former.view(torch.int16) != new.view(torch.int16)  # by bits: 0 and -0 are not the same policy
        if 6 * int(changed.sum()) >= 2 * changed.numel() or changed.numel() >= 2**31:
            return former
        at = changed.flatten().nonzero().squeeze(1)
        return cls(at.int(), former.flatten()[at])

    def undone(self, new: Tensor) -> Tensor:
        flat = new.flatten().clone()
        flat[self.at.long()] = self.former
        return flat.view_as(new)


class SamplerParityCheck:
    """`tokens` bounds what is recomputed a step, context included; `versions` how many are kept."""

    def __init__(self, tokens: int, versions: int, here: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> None:
        """`here` is what of a tensor this process has: what is kept, and written back."""
        self.tokens, self.versions, self._here = tokens, versions, here
        self._newest: tuple[Version, list[Tensor]] | None = None
        self._older: OrderedDict[Version, list[Tensor | _Differences]] = OrderedDict()
        """Each by its differences from the one behind it, the last from the newest."""

    @property
    def newest(self) -> list[Tensor] | None:
        """What is kept of the newest version; None before there is any."""
        return None if self._newest is None else self._newest[1]

    def _moving(self, policy: Decoder) -> list[Tensor]:
        """What differs between its versions: all that is not frozen."""
        return [self._here(parameter.detach()) for parameter in policy.parameters() if parameter.requires_grad]

    def remember(self, version: Version, policy: Decoder) -> None:
        """Keep a copy of a policy whose parameters are bf16 values."""
        if not self.tokens:
            return
        whole = [parameter.to(torch.bfloat16) for parameter in self._moving(policy)]
        if self._newest is not None and self._newest[0] < version:
            self._older[self._newest[0]] = list(map(_Differences.between, self._newest[1], whole))
        else:
            self._older.clear()  # a run that was taken up elsewhere: nothing leads from there to here
        self._newest = version, whole
        while len(self._older) >= self.versions:
            self._older.popitem(last=False)

    @contextmanager
    def restored(self, version: Version, policy: Decoder) -> Generator[None]:
        """The newest policy has a kept version's parameters for as long as this lasts, its gradients as they are."""
        assert self._newest is not None
        self._write(version, policy)
        try:
            yield
        finally:
            self._write(self._newest[0], policy)

    @torch.no_grad()
    def _write(self, version: Version, policy: Decoder) -> None:
        assert self._newest is not None
        later = [tensors for kept, tensors in reversed(self._older.items()) if kept >= version]
        for index, (parameter, bits) in enumerate(zip(self._moving(policy), self._newest[1], strict=True)):
            for tensors in later:
                former = tensors[index]
                bits = former if isinstance(former, Tensor) else former.undone(bits)
            parameter.copy_(bits)

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
            if ages[0] and version in self._older:
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

"""Speculative decoding: a step computes guessed tokens too, and keeps those that would be sampled anyway.

Owns where guesses come from (prompt lookup, and the checkpoint's own layer for the token after the next), how often
each kind has been right, and from that which one is taken and how many tokens of it are worth their cost. The engine
computes a guess in one step and keeps what it would have sampled anyway: every position has its own random number, and
a token's bits do not depend on how it was computed, so the tokens are the very same with speculation and without. A
draft is drawn from the layer's distribution with the number of its position, so that it meets the token drawn later
wherever the two distributions agree. Never decides what is said (`engine.torch_engine`).

The layer's keys and values lie in the pages of the tokens whose pairs they are of: in a page that is shared, the last
one's may come from a continuation other than one's own, which can cost a guess, and never a token.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from math import log

import numpy as np
import torch
from torch import Tensor

from etude.engine.attention import PagedAttention
from etude.engine.config import EngineConfig
from etude.engine.kv_cache import OutOfPages, PagedCache
from etude.engine.lookup import NgramCache, PromptLookup, Proposal
from etude.engine.running import RunningRequest
from etude.engine.sampling import distribution, draw
from etude.errors import ConfigError
from etude.models.decoder import Decoder

FURTHER = "further"
"""The kind of guess that the checkpoint's own layer makes."""
FIXED_ROWS = 8
"""A step costs about as much before its first token as so many tokens cost: one guessed where few run is nearly free,
where many run it costs what any token does."""
LOOKUP_NGRAM = 1
"""So many tokens must have been said before, in the same order, for what followed them to be guessed: `AcceptanceRate`
drops lookups that guess badly sooner than a longer match would pay."""
_FADE = 0.98
"""What a guess weighs for each one after it."""


class AcceptanceRate:
    """How often the next token of a kind of guess is right."""

    def __init__(self) -> None:
        self.right, self.wrong = 3.0, 1.0

    def learn(self, guessed: int, right: int) -> None:
        """A guess of so many tokens was right in its first so many."""
        self.right = _FADE * self.right + right
        self.wrong = _FADE * self.wrong + (right < guessed)

    @property
    def probability(self) -> float:
        return min(max(self.right / (self.right + self.wrong), 0.01), 0.99)

    def draft_length(self, running: int) -> int:
        """How many tokens to guess: each is used only if all before it are right, and must save more than it costs."""
        return int(log(running / (running + FIXED_ROWS)) / log(self.probability))


class Speculation:
    """Of one engine; used on its thread."""

    def __init__(self, decoder: Decoder, cache: PagedCache, config: EngineConfig, counters: Counter[str]) -> None:
        if config.further_tokens and decoder.further is None:
            raise ConfigError("engine.further_tokens: this checkpoint has no layer for a further token; set it to 0")
        self.decoder, self.cache, self.config, self.counters = decoder, cache, config, counters
        self.rates: dict[str, AcceptanceRate] = {}
        self.ngrams = NgramCache()

    def propose(self, running: RunningRequest, beside: int, budget: int) -> list[int]:
        """What to compute behind the token at a sequence's end, where so many sequences run in all."""
        running.proposals = sorted(
            self._proposals(running, min(budget, running.tokens_left - 1)), key=self._probability, reverse=True
        )
        if not running.proposals:
            return []
        best = running.proposals[0]
        tokens = best.tokens[: self.rates[best.kind].draft_length(beside)]
        self._count("guessed", best.kind, len(tokens))
        return tokens

    def _probability(self, guess: Proposal) -> float:
        return self.rates.setdefault(guess.kind, AcceptanceRate()).probability

    def _proposals(self, running: RunningRequest, most: int) -> list[Proposal]:
        if most <= 0 or running.constraint is not None:  # what a grammar allows depends on what was said
            return []
        sequence, found = running.sequence, [Proposal(running.draft[:most], FURTHER)]
        if self.config.lookup_tokens:
            most = min(most, self.config.lookup_tokens)
            if sequence.lookup is None:
                sequence.lookup = PromptLookup(LOOKUP_NGRAM)
            found += (each.propose(sequence.token_ids, most) for each in (sequence.lookup, self.ngrams))
        return [guess for guess in found if guess.tokens]

    def learn(self, running: RunningRequest, right: int) -> None:
        """So many of the tokens guessed were right. Of guesses that were not computed the first token is compared."""
        if self.config.lookup_tokens:
            self.ngrams.learn(running.sequence.token_ids, right + 1)
        for guess in running.proposals:
            if guess is running.proposals[0] and running.proposed:
                self.rates[guess.kind].learn(len(running.proposed), right)
                self._count("right", guess.kind, right)
            else:
                self.rates[guess.kind].learn(1, guess.tokens[0] == running.sampled[-1 - right].token)

    def _count(self, what: str, kind: str, tokens: int) -> None:
        self.counters["guessed_tokens" if what == "guessed" else "guessed_right"] += tokens
        if kind == FURTHER:
            self.counters[f"further_{what}"] += tokens

    # --- the layer for a further token --------------------------------------------------------------------------------

    def follow(self, batch: list[tuple[RunningRequest, int]], starts: list[int], hidden_ND: Tensor) -> None:
        """Put the pairs of tokens that a step has completed through the layer, and draft where one was sampled.
        `starts` is what each had computed before the step, whose hidden states are given.
        """
        paired: list[tuple[RunningRequest, int, int]] = []
        rows: list[int] = []
        row = 0
        for (running, count), start in zip(batch, starts, strict=True):
            running.draft, sequence = [], running.sequence
            pairs = min(sequence.computed, len(sequence.token_ids) - 1) - start  # fewer than none if it was given up
            if pairs > 0:
                paired.append((running, start, pairs))
                rows += range(row, row + pairs)
            row += count
        if not paired:
            return
        ids = chain.from_iterable(
            running.sequence.token_ids[start + 1 : start + 1 + pairs] for running, start, pairs in paired
        )
        batch, starts = [(running, pairs) for running, _, pairs in paired], [start for _, start, _ in paired]
        further_ND = self._further(batch, starts, list(ids), hidden_ND[torch.tensor(rows, device=hidden_ND.device)])
        ends = np.cumsum([pairs for _, pairs in batch]) - 1
        drafting = [(running, end) for (running, _), end in zip(batch, ends, strict=True) if _wants_draft(running)]
        if drafting:
            self._draft(
                [running for running, _ in drafting],
                further_ND[torch.tensor([end for _, end in drafting], device=further_ND.device)],
            )

    def _further(
        self, batch: list[tuple[RunningRequest, int]], starts: list[int], ids: list[int], hidden: Tensor
    ) -> Tensor:
        attention = PagedAttention(self.cache, [(running.sequence, pairs) for running, pairs in batch], starts)
        return self.decoder.look_further(
            torch.tensor(ids, device=hidden.device), hidden, attention.positions, attention
        )[0]

    def _draft(self, drafting: list[RunningRequest], hidden_RD: Tensor) -> None:
        """One token after another, each as far as there is room for the pair before it."""
        temperatures = [running.request.temperature for running in drafting]
        cuts = [running.cut for running in drafting]
        for ahead in range(self.config.further_tokens):
            if ahead:
                starts = [running.sequence.computed + ahead - 1 for running in drafting]
                try:
                    for running, start in zip(drafting, starts, strict=True):
                        self.cache.reserve(running.sequence, start + 1)
                except OutOfPages:
                    return
                ids = [running.draft[-1] for running in drafting]
                hidden_RD = self._further([(running, 1) for running in drafting], starts, ids, hidden_RD)
            logprobs_RV = distribution(self.decoder.further_logits(hidden_RD), temperatures, cuts)
            uniforms = [running.uniform_for(ahead) for running in drafting]
            for running, token in zip(
                drafting, draw(logprobs_RV, temperatures, uniforms, self.decoder.kernels.on_host), strict=True
            ):
                running.draft.append(token)


def _wants_draft(running: RunningRequest) -> bool:
    """Whether the next step decodes a token of it, and perhaps more."""
    ends = running.future.done() or running.tokens_left <= 1
    return running.to_compute == 1 and running.constraint is None and not ends

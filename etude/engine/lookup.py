"""Guesses the next tokens of a sequence from earlier text: prompt lookup.

Owns the index of one sequence's n-grams (`PromptLookup`) and that of recent text of all sequences of an engine
(`NgramCache`). An agent that edits repeats what it has read, so the tokens that followed the last few the last time are
a good guess (prompt lookup decoding; speculation: arXiv 2211.17192); and the form of its calls is the same in all its
sessions. Of several places in a sequence the one that agrees longest with what was said last is taken. An edit repeats
with changes: after a token that breaks the repetition, and before enough has been said to find a new place, the old one
is guessed to go on behind that token. Never decides how much of a guess is worth computing (`engine.speculation`).
"""

from __future__ import annotations

from typing import NamedTuple

PLACES = 8
"""So many of an n-gram's last occurrences are compared."""
AGREEMENTS = (1, 2, 3, 4, 6, 10)
"""A guess is of another kind from so many tokens on that agree; no longer agreement is looked for."""
_NGRAM = 3
"""Tokens that a habit is told by."""
_MOST_NGRAMS = 1 << 16
"""N-grams that are kept of what was said; the oldest go first."""


class Proposal(NamedTuple):
    tokens: list[int]
    kind: str = ""
    """What it is based on: kinds are right more or less often."""


NO_PROPOSAL = Proposal([])


class PromptLookup:
    """Of one sequence, whose tokens only ever grow."""

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram
        self._places: dict[tuple[int, ...], list[int]] = {}
        """n-gram → where what followed it begins, in order."""
        self._indexed = ngram
        self._from, self._length = 0, 0
        """The place last guessed from, 0 for none, and how many tokens there were then."""

    def propose(self, tokens: list[int], most: int) -> Proposal:
        """At most so many tokens that may come next: from a place just found ("new", and how many tokens agree), from
        where the last place goes on ("going"), or would behind a break ("resumed").
        """
        for end in range(self._indexed, len(tokens)):
            self._places.setdefault(tuple(tokens[end - self.ngram : end]), []).append(end)
        self._indexed = max(self._indexed, len(tokens))
        expected = self._from + len(tokens) - self._length if self._from else 0
        places = self._places.get(tuple(tokens[-self.ngram :]), [])[-PLACES:]
        if places:
            agrees, _, place = max((self._agreement(tokens, place), place == expected, place) for place in places)
            kind = f"{'going' if place == expected else 'new'} {agrees}"
        else:
            place, kind = expected, "resumed"
        self._from, self._length = place, len(tokens)
        guessed = tokens[place : place + most] if place else []
        return Proposal(guessed, kind) if guessed else NO_PROPOSAL

    def _agreement(self, tokens: list[int], place: int) -> int:
        """How many tokens before a place are those at the end, as `AGREEMENTS` counts."""
        most = min(place, AGREEMENTS[-1])
        agree = self.ngram
        while agree < most and tokens[place - agree - 1] == tokens[-agree - 1]:
            agree += 1
        return max(each for each in AGREEMENTS if each <= agree)


class NgramCache:
    """Of one engine: which token came after the last few, the last time that any of its sequences said them."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}

    def learn(self, tokens: list[int], new: int) -> None:
        """The last so many tokens of a sequence have just been said."""
        for end in range(max(len(tokens) - new, _NGRAM), len(tokens)):
            key = tuple(tokens[end - _NGRAM : end])
            self._next.pop(key, None)
            self._next[key] = tokens[end]
        while len(self._next) > _MOST_NGRAMS:
            del self._next[next(iter(self._next))]

    def propose(self, tokens: list[int], most: int) -> Proposal:
        """At most so many tokens, one after another."""
        last, guessed = tokens[-_NGRAM:], []
        while len(guessed) < most and (token := self._next.get(tuple(last))) is not None:
            guessed.append(token)
            last = [*last[1:], token]
        return Proposal(guessed, "habit") if guessed else NO_PROPOSAL

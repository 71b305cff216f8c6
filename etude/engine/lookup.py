"""What a sequence is likely to say next, because it has been said before in it: prompt lookup.

Owns the index of one sequence's n-grams. An agent that edits repeats what it has read, so the tokens that followed the
last few the last time are a good guess (prompt lookup decoding; speculation: arXiv 2211.17192). The engine computes a
guess in one step and keeps what it would have sampled anyway: every position has its own random number, and a token's
bits do not depend on how it was computed, so the tokens are the very same with speculation and without.
"""

from __future__ import annotations


class Lookup:
    """Of one sequence, whose tokens only ever grow."""

    def __init__(self, ngram: int) -> None:
        self.ngram = ngram
        self.reach = 4
        """How long the next guess is: more after one that was right, less after one that was not."""
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = ngram

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """The tokens that followed the last occurrence of the last n-gram; [] where it never was before."""
        for end in range(self._indexed, len(tokens)):
            self._next[tuple(tokens[end - self.ngram : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        start = self._next.get(tuple(tokens[-self.ngram :]))
        return [] if start is None else tokens[start : start + min(most, self.reach)]

    def learn(self, guessed: int, right: int, most: int) -> None:
        """A guess of so many tokens was right in so many."""
        if guessed:
            self.reach = min(2 * self.reach, most) if right == guessed else max(right, 1)

"""Sampled tokens to text, as they come.

Owns the two things that make text come later than its tokens: a character may be spread over several tokens, and a stop
string may have begun. What is given out is never taken back; joined, it is what decoding all tokens at once gives, up
to the stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one choice."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), keep_stop: bool = False):
        """`decode` gives the text of token ids; `keep_stop` leaves the stop string that was met in the text."""
        self._decode, self._stops, self._keep_stop = decode, tuple(stops), keep_stop
        self._tokens: list[int] = []
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, token: int) -> str:
        """What is certain after one more token. Nothing is, once a stop string was met."""
        self._tokens.append(token)
        return self._through_stops(self._whole_characters())

    def finish(self) -> str:
        """What was held back, now that nothing follows."""
        text = self._through_stops(self._decode(self._tokens)) if self._tokens else ""
        self._tokens.clear()
        held, self._held = self._held, ""
        return text + held

    def _whole_characters(self) -> str:
        """The text of as many pending tokens as no later token can change."""
        text = self._decode(self._tokens)
        if not text.endswith(_BROKEN):
            self._tokens.clear()
            return text
        for cut in range(1, len(self._tokens)):  # bytes that are no character must not hold back what came before
            head = self._decode(self._tokens[:cut])
            if head + self._decode(self._tokens[cut:]) == text:
                del self._tokens[:cut]
                return head
        return ""

    def _through_stops(self, text: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:  # the first to be completed, so that it does not matter how the tokens cut the text
            _, at, self.stopped_by = min(found)
            self._held = ""
            return text[: at + len(self.stopped_by)] if self._keep_stop else text[:at]
        held = max((_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _begun(text: str, stop: str) -> int:
    """How much of the text's end may be the beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
